"""Why cells say no: what is impossible in principle; whatever is not here is not done yet."""

REASONS = {
    "cannot begin with A·X": "in principle: what is recomputed are rows of A·X, made once; rows "
    "that are weighed or compared by what is learnt change in every step",
    "repeated edges cannot be updated": "in principle: an edge that is dropped does not say which "
    "of several it is",
    "its layers take the matrix": "in principle: the command makes one matrix, and a model is "
    "registered with the one it takes",
    "codec needs exchange": "in principle: a block row is broadcast as it is, whoever needs it",
    "codec needs its own algo": "in principle: a plan compares schemes of one accuracy",
    "looks at all vertices": "in principle: any vertex changes what all others get",
}
