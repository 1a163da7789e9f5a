"""Classification benchmark: untuned learners and other libraries on real streams."""
