# It's Our Loss: no privacy amplification for hidden-state DP-SGD with non-convex loss.


use rule simulate as simulate_encoding_loss with:
    wildcard_constraints:
        family="encoding_loss",
        cell=cell_names("encoding_loss", "scores"),


use rule bound as bound_encoding_loss with:
    wildcard_constraints:
        family="encoding_loss",
        cell=cell_names("encoding_loss", "bounds"),
    message:
        "encoding_loss: trade-off curves of all iterates, {wildcards.cell}"
