# One job for each chunk of runs. The stamp is the output; records are side effects that Snakemake never deletes.


rule runs:
    input:
        lambda wildcards: SUITE.stamps(),


# A job on a cluster reads the plan again: by then its runs may have records, by a job that outlived its controller.
if SUITE.missing or not workflow.is_main_process:

    rule run:
        input:
            ancient(SUITE.checked_data()),
        output:
            "scratch/done/{chunk}.json",
        log:
            "scratch/logs/jobs/run-{chunk}.log",
        conda:
            "../../environment.yml"
        threads: SUITE.threads()
        resources:
            **SUITE.job_resources(),
            **SUITE.site_words(),
            **SUITE.after("run"),
        params:
            tier=TIER,
            about=lambda wildcards: SUITE.about(wildcards.chunk),
        message:
            "chunk {wildcards.chunk}: {params.about}, at most {resources.runtime} minutes"
        shell:
            "python -m repro run {wildcards.chunk:q} --tier {params.tier:q} --stamp {output:q} 2>&1 | tee -i {log:q}"
