/*
 * ahead.c - the deliveries that a source has read and not concluded: a queue of
 * those that the consumer has not taken yet, and a tree of all of them.
 */
#include "consume.h"

#include <search.h>

void
idem__ahead_init(struct ahead *ahead, int (*by)(const void *, const void *))
{
    ahead->last = &ahead->first;
    ahead->by = by;
}

bool
idem__ahead_add(struct ahead *ahead, struct delivery *delivery)
{
    struct delivery **found = tsearch(delivery, &ahead->in_hand, ahead->by);

    if (!found || *found != delivery) {
        idem__delivery_drop(delivery);
        return found != NULL;
    }
    delivery->next = NULL;
    *ahead->last = delivery;
    ahead->last = &delivery->next;
    return true;
}

struct delivery *
idem__ahead_take(struct ahead *ahead)
{
    struct delivery *delivery = ahead->first;

    if (delivery)
        ahead->first = delivery->next;
    if (!ahead->first)
        ahead->last = &ahead->first;
    return delivery;
}

void
idem__ahead_concluded(struct ahead *ahead, const struct delivery *delivery)
{
    tdelete(delivery, &ahead->in_hand, ahead->by);
}

static void
drop_ready(struct ahead *ahead)
{
    struct delivery *delivery;

    while ((delivery = idem__ahead_take(ahead)))
        idem__delivery_drop(delivery);
}

static void
keep(void *delivery)
{
    (void)delivery; /* the tree does not own deliveries */
}

void
idem__ahead_forget(struct ahead *ahead)
{
    tdestroy(ahead->in_hand, keep);
    ahead->in_hand = NULL;
    drop_ready(ahead);
}

enum idem_status
idem__ahead_put_back(struct ahead *ahead, struct source *source,
                     struct idem_error *err)
{
    enum idem_status status;

    for (struct delivery *d = ahead->first; d; d = d->next)
        d->fate = FATE_PUT_BACK;
    status = source->type->conclude(source, ahead->first, err);
    drop_ready(ahead);
    return status;
}
