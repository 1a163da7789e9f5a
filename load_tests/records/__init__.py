"""Files with published results: the default model, MOA, LightGBM and River on them."""
