"""The drawings of a report, as SVG: numbers in, markup out."""
