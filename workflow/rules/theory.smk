# Checks of theory (kind: check) get their rules here; none is planned by the experiments of this release.


rule theory:
    input:
        [],
