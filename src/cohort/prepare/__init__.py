"""What is done before the first step: inputs read, trials proposed, sizes chosen, warnings given."""
