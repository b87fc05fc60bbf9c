from .embeddings import Embeddings as Embeddings
