"""Training loops that belong to a framework: Lightning, Transformers, Accelerate.

The framework's loop drives. What is chosen, how losses are weighed and what is learned are `AdaptiveLoader`'s. Each
module needs its framework, which the extra of the same name brings (`pip install ".[lightning]"`).
"""
