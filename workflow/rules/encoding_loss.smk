# It's Our Loss: no privacy amplification for hidden-state DP-SGD with non-convex loss.


module encoding_loss:
    snakefile:
        "family.smk"
    config:
        {**config, "family": "encoding_loss"}


use rule * from encoding_loss as encoding_loss_*
