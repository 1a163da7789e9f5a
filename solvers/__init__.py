"""Online learners for linear models, with duality certificates where a dual exists."""
