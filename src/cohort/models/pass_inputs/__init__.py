"""What a pass hands to the layers of a decoder besides the stream."""
