-- An outbox (PostgreSQL): the message commits with the order, is relayed at
-- least once, and idem consume makes that once.

create table if not exists orders (
    id uuid primary key,
    item text not null
);

create table if not exists outbox (
    id uuid primary key,                 -- the message's identity, for ever
    queue text not null,
    body jsonb not null,
    created timestamptz not null default now(),
    sent timestamptz                     -- null: still to be relayed
);
create index if not exists outbox_unsent on outbox (created) where sent is null;

-- The service: one transaction, so there is never an order without its message
-- or a message without its order. The id comes from the caller (idem id uuid7),
-- and a repeat of the whole request changes nothing.
begin;
insert into orders (id, item)
    values ('0190c6a0-0000-7000-8000-000000000001', 'book')
    on conflict do nothing;
insert into outbox (id, queue, body)
    values ('0190c6a0-0000-7000-8000-000000000001', 'orders',
            '{"order": "0190c6a0-0000-7000-8000-000000000001", "item": "book"}')
    on conflict do nothing;
commit;

-- The relay, again and again: take some, publish each with message_id = id,
-- wait for the broker's confirms, then mark them. If it dies before the commit,
-- they are sent again, and the consumer recognises them.
begin;
select id, queue, body from outbox
    where sent is null order by created limit 100 for update skip locked;
-- ... publish here ...
update outbox set sent = now()
    where id = any (array['0190c6a0-0000-7000-8000-000000000001']::uuid[]);
commit;

-- Now and then.
delete from outbox where sent < now() - interval '7 days';
