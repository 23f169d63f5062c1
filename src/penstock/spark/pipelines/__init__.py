"""Whole jobs on topics: archive, replay, materialize, aggregate, transform, audit.

Each is a module with a plain function of the same name, for notebooks and `spark-submit`; `penstock pipeline NAME` is
the same function behind a command:

    from penstock.spark import session
    from penstock.spark.pipelines.archive import archive

    archive(session("nightly"), bootstrap="localhost:9092", topics=["orders"], to="file:///archive/orders")

What is wrong with the arguments, the topics or the target is said before data moves, as a PipelineError or WireError.
"""
