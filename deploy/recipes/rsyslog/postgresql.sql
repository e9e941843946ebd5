-- The table that postgresql.conf fills: the fields one asks for, and the whole record.
create table if not exists tracer_verdicts (
    time       timestamptz not null,
    node       text        not null,
    seq        bigint      not null,
    cause      text        not null,
    outcome    text        not null,
    confidence text        not null,
    namespace  text,
    pod        text,
    container  text,
    probe      text,
    summary    text        not null,
    record     jsonb       not null,
    -- A line that is read twice, after a crash of rsyslog, is one verdict.
    primary key (node, time, seq)
);
create index if not exists tracer_verdicts_cause on tracer_verdicts (cause, time);
