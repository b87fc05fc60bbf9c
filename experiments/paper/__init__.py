"""Sparsity-Aware Communication for Distributed Graph Neural Network Training, shown again.

Mukhopadhyay, Tripathy, Selvitopi, Yelick, Buluç, ICPP'24, doi 10.1145/3673038.3673152,
arXiv 2504.04673.
"""
