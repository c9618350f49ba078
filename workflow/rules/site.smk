# The static page; it holds aggregates, never an item for each run.


rule page:
    input:
        f"scratch/plan/{TIER}/site.key",
    output:
        SITE,
    log:
        f"scratch/logs/jobs/{TIER}-page.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        tier=TIER,
    shell:
        "python -m repro site --tier {params.tier:q} 2>&1 | tee -i {log:q}"


rule site:
    input:
        lambda wildcards: SUITE.keys("site"),
        SITE,
