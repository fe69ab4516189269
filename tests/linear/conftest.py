"""Collection of the tests of linear autoencoders."""

# The doctests would import this module a second time, under another name, and a tag that is
# registered by `saved_as` belongs to one class.
collect_ignore = ["toy_methods.py"]
