# Derived views. Each depends on its key file only, whose content changes exactly if the view could look different.

PENDING = SUITE.pending()

if PENDING:

    # While runs are missing a key is made after them; else reading the plan has already brought it up to date.
    rule key:
        input:
            lambda wildcards: SUITE.stamps(wildcards.view),
        output:
            f"scratch/plan/{TIER}/{{view}}.key",
        log:
            f"scratch/logs/jobs/{TIER}-key-{{view}}.log",
        wildcard_constraints:
            view="|".join(PENDING),
        localrule: True
        conda:
            "../../environment.yml"
        params:
            tier=TIER,
        shell:
            "python -m repro plan --tier {params.tier:q} --key {wildcards.view:q} 2>&1 | tee -i {log:q}"


rule paper:
    input:
        f"scratch/plan/{TIER}/paper_{{paper}}.key",
    output:
        f"{TABLES}/paper_{{paper}}.csv",
        f"{TABLES}/claims_{{paper}}.csv",
        f"{TABLES}/checks_{{paper}}.csv",
    log:
        f"scratch/logs/jobs/{TIER}-paper-{{paper}}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        tier=TIER,
    shell:
        "python -m repro tables --tier {params.tier:q} --paper {wildcards.paper:q} 2>&1 | tee -i {log:q}"


rule leaderboard_lm:
    input:
        f"scratch/plan/{TIER}/leaderboard.key",
    output:
        f"{TABLES}/leaderboard_lm.csv",
    log:
        f"scratch/logs/jobs/{TIER}-leaderboard_lm.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        tier=TIER,
    shell:
        "python -m repro leaderboard --tier {params.tier:q} --track lm 2>&1 | tee -i {log:q}"


rule tables:
    input:
        lambda wildcards: SUITE.keys(*(f"paper_{paper}" for paper in PAPERS)),
        expand("{tables}/paper_{paper}.csv", tables=TABLES, paper=PAPERS),


rule claims:
    input:
        lambda wildcards: SUITE.keys(*(f"paper_{paper}" for paper in PAPERS)),
        expand("{tables}/claims_{paper}.csv", tables=TABLES, paper=PAPERS),


rule leaderboard:
    input:
        lambda wildcards: SUITE.keys("leaderboard"),
        BOARDS,
