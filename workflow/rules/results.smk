# What every family does alike: estimates from its cells, figures and tables from estimates.


rule estimate:
    input:
        cell_files,
    output:
        f"{RESULTS}/{{family}}/estimates.csv",
    log:
        f"{LOGS}/{{family}}/estimate.log",
    benchmark:
        f"{LOGS}/{{family}}/estimate.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
    params:
        config=SCALE_FILE,
        code=CODE,
        cells=f"{RESULTS}/{{family}}",
    message:
        "{wildcards.family}: estimates from scores and bounds"
    shell:
        "hiddenstate estimates {wildcards.family} --config {params.config}"
        " --scores {params.cells}/scores --bounds {params.cells}/bounds"
        " --out {output} > {log} 2>&1"


rule plot_figure:
    input:
        f"{RESULTS}/{{family}}/estimates.csv",
    output:
        pdf=f"{FIGURES}/{{family}}/{{name}}.pdf",
        png=report(
            f"{FIGURES}/{{family}}/{{name}}.png",
            caption="../report/caption.rst",
            category="Figures",
            subcategory="{family}",
            labels={"figure": "{name}"},
        ),
    log:
        f"{LOGS}/{{family}}/plot_{{name}}.log",
    benchmark:
        f"{LOGS}/{{family}}/plot_{{name}}.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        config=SCALE_FILE,
        code=CODE,
        title=title,
        caption=caption,
    message:
        "{wildcards.family}: {params.title}"
    shell:
        "hiddenstate figure {wildcards.family} {wildcards.name} --config {params.config}"
        " --estimates {input} --out {output.pdf} {output.png} > {log} 2>&1"


rule tabulate:
    input:
        f"{RESULTS}/{{family}}/estimates.csv",
    output:
        csv=report(
            f"{RESULTS}/{{family}}/tables/{{name}}.csv",
            caption="../report/caption.rst",
            category="Tables",
            subcategory="{family}",
            labels={"table": "{name}"},
        ),
        md=f"{RESULTS}/{{family}}/tables/{{name}}.md",
        tex=f"{RESULTS}/{{family}}/tables/{{name}}.tex",
    log:
        f"{LOGS}/{{family}}/tabulate_{{name}}.log",
    benchmark:
        f"{LOGS}/{{family}}/tabulate_{{name}}.tsv"
    conda:
        "../../envs/hiddenstate.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        config=SCALE_FILE,
        code=CODE,
        title=title,
        caption=caption,
    message:
        "{wildcards.family}: {params.title}"
    shell:
        "hiddenstate table {wildcards.family} {wildcards.name} --config {params.config}"
        " --estimates {input} --out {output.csv} {output.md} {output.tex} > {log} 2>&1"
