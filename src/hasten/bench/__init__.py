"""A load generator for any OpenAI-compatible server, and the statistics that say what its numbers are worth.

    trace → workload → runner → client → connection      what is sent, when, and how
    record → metrics → result → report                   what came back, and what it means
    audit                                                 whether the client itself can be believed
    compare  cost                                         two results; money

Speaks HTTP only: it imports no engine, no server and no tokenizer of hasten.
"""
