"""What an op is run on: production shapes, arguments, layouts, gradients, coverage of cases."""
