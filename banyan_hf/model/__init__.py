"""The model itself: one flat, self-contained folder that travels to the Hub with every checkpoint.

Reading order: configuration_banyan, graph, message_passing, counter_dropout, induction, numba_kernels, objectives,
pretrained_banyan, modeling_banyan. Files here import one another, torch, transformers, numpy and (optionally) numba;
nothing else.
"""
