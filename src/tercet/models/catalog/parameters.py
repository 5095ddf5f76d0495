"""Parameters: how many a model of a given shape has, counted from its matrices."""

from tercet.kernel.model_shape import ModelShape


def parameters(model: ModelShape) -> int:
    """Weights of the whole model (on all GPUs): embedding, layers, norms and head.

    Multi-token-prediction layers, which some checkpoints carry beside the model, are not counted.
    """
    tables = model.vocabulary * model.hidden * (1 if model.tied else 2)
    dense_layers = model.dense_layers if model.experts else model.layers
    layers = model.layers * (_attention(model) + 2 * model.hidden)
    dense = dense_layers * 3 * model.hidden * model.intermediate
    sparse = (model.layers - dense_layers) * _experts(model)
    return tables + layers + dense + sparse + model.hidden


def _attention(model: ModelShape) -> int:
    query = model.heads * model.head_dim
    if not model.kv_rank:
        keys = model.kv_heads * model.head_dim
        norms = 2 * model.head_dim if model.query_key_norm else 0
        return model.hidden * (2 * query + 2 * keys) + norms
    kept = model.head_dim - model.rope_dim + model.value_dim
    down = model.hidden * (model.query_rank + model.kv_rank + model.rope_dim)
    up = model.query_rank * query + model.kv_rank * model.heads * kept
    norms = model.query_rank + model.kv_rank
    return down + norms + up + model.heads * model.value_dim * model.hidden


def _experts(model: ModelShape) -> int:
    router = model.experts * model.hidden
    each = 3 * model.hidden * model.expert_intermediate
    return router + (model.experts + model.shared_experts) * each
