"""Model specifications: fields, defaults, and the learner that they describe."""
