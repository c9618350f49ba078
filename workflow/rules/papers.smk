# Everything that one paper's tables need.


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
