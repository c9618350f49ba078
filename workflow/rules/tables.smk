# Derived views. Each depends on its key file only, whose content changes exactly if the view could look different.

PENDING = SUITE.pending()

if PENDING:

    # While runs are missing a key is made after them; else reading the plan has already brought it up to date.
    rule key:
        input:
            lambda wildcards: SUITE.stamps(wildcards.view),
        output:
            f"scratch/plan/{TIER}/{{view}}.key",
        wildcard_constraints:
            view="|".join(PENDING),
        localrule: True
        shell:
            "python -m repro plan --tier {TIER:q} --key {wildcards.view:q}"


rule paper:
    input:
        f"scratch/plan/{TIER}/paper_{{paper}}.key",
    output:
        f"{TABLES}/paper_{{paper}}.csv",
        f"{TABLES}/claims_{{paper}}.csv",
    localrule: True
    shell:
        "python -m repro tables --tier {TIER:q} --paper {wildcards.paper:q}"


rule leaderboard_lm:
    input:
        f"scratch/plan/{TIER}/leaderboard.key",
    output:
        f"{TABLES}/leaderboard_lm.csv",
    localrule: True
    shell:
        "python -m repro leaderboard --tier {TIER:q} --track lm"


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


rule paper_a:
    input:
        lambda wildcards: SUITE.keys("paper_a"),
        f"{TABLES}/paper_a.csv",


rule paper_b:
    input:
        lambda wildcards: SUITE.keys("paper_b"),
        f"{TABLES}/paper_b.csv",


rule paper_c:
    input:
        lambda wildcards: SUITE.keys("paper_c"),
        f"{TABLES}/paper_c.csv",


rule paper_d:
    input:
        lambda wildcards: SUITE.keys("paper_d"),
        f"{TABLES}/paper_d.csv",
