
/*
 * ngx_http_idem_op.c - commands: their memory, their tags, and the queue in
 * which they wait to be sent.
 *
 * An operation keeps its bytes until it is answered, even if its request has
 * ended, so that it can be sent again.
 */


#include "ngx_http_idem.h"


#define NGX_HTTP_IDEM_SLOT_BITS       20
#define NGX_HTTP_IDEM_SPARE           1024
#define NGX_HTTP_IDEM_SPARES          1024


static void ngx_http_idem_again_handler(ngx_event_t *ev);


/* splitmix64 from a random start: no two values of a worker are alike, and no
 * two workers start alike */

uint64_t
ngx_http_idem_nonce(ngx_http_idem_engine_t *e)
{
    uint64_t  z;

    z = (e->nonce += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;

    return z ^ (z >> 31);
}


/* make sure that there is a free slot */

static ngx_int_t
ngx_http_idem_grow_slots(ngx_http_idem_engine_t *e)
{
    ngx_uint_t            i, n;
    ngx_http_idem_op_t  **slots;

    if (e->free_slot != NGX_CONF_UNSET_UINT) {
        return NGX_OK;
    }

    n = e->nslots ? e->nslots * 2 : 256;

    slots = ngx_alloc(n * sizeof(ngx_http_idem_op_t *), e->log);
    if (slots == NULL) {
        return NGX_ERROR;
    }

    if (e->nslots) {
        ngx_memcpy(slots, e->slots, e->nslots * sizeof(ngx_http_idem_op_t *));
        ngx_free(e->slots);
    }

    /* a free slot holds the number of the next one, with its low bit set so
     * that it cannot be a pointer */

    for (i = e->nslots; i < n; i++) {
        slots[i] = (ngx_http_idem_op_t *)
                       (i + 1 < n ? ((i + 1) << 1) | 1 : (uintptr_t) -1);
    }

    e->free_slot = e->nslots;
    e->slots = slots;
    e->nslots = n;

    return NGX_OK;
}


static void
ngx_http_idem_take_slot(ngx_http_idem_engine_t *e, ngx_http_idem_op_t *op)
{
    ngx_uint_t  i;

    i = e->free_slot;
    e->free_slot = (uintptr_t) e->slots[i] == (uintptr_t) -1
                   ? NGX_CONF_UNSET_UINT : (uintptr_t) e->slots[i] >> 1;
    e->slots[i] = op;
}


ngx_http_idem_op_t *
ngx_http_idem_op_find(ngx_http_idem_engine_t *e, uint64_t tag)
{
    ngx_uint_t           i;
    ngx_http_idem_op_t  *op;

    i = tag & ((1 << NGX_HTTP_IDEM_SLOT_BITS) - 1);

    if (i >= e->nslots || ((uintptr_t) e->slots[i] & 1)) {
        return NULL;
    }

    op = e->slots[i];

    return op->tag == tag ? op : NULL;
}


/* every request allocates commands and claims, so memory blocks of the usual
 * size are kept for reuse */

void *
ngx_http_idem_alloc(ngx_http_idem_engine_t *e, size_t size)
{
    void  *p;

    if (size > NGX_HTTP_IDEM_SPARE) {
        return ngx_alloc(size, e->log);
    }

    if (e->spare == NULL) {
        return ngx_alloc(NGX_HTTP_IDEM_SPARE, e->log);
    }

    p = e->spare;
    e->spare = *(void **) p;
    e->spares--;

    return p;
}


void
ngx_http_idem_free(ngx_http_idem_engine_t *e, void *p, size_t size)
{
    if (size > NGX_HTTP_IDEM_SPARE || e->spares == NGX_HTTP_IDEM_SPARES) {
        ngx_free(p);
        return;
    }

    *(void **) p = e->spare;
    e->spare = p;
    e->spares++;
}


/* the command for an operation; its tag is a slot and a generation, so that a
 * late reply finds no command */

ngx_http_idem_op_t *
ngx_http_idem_op_create(ngx_http_idem_engine_t *e, struct idem_op *what,
    ngx_http_idem_reply_pt handler, void *data)
{
    char                      *end, *room;
    size_t                     size;
    ngx_http_idem_op_t        *op;
    struct idem__wire_plan     plan;
    struct idem__wire_command  command;

    if (ngx_http_idem_grow_slots(e) != NGX_OK) {
        return NULL;
    }

    e->generation = (e->generation + 1) & 0xffffffff;

    /* the rest of the struct is for SCAN and for reading */

    command.op = *what;
    command.scan = 0;
    command.full = 0;
    command.next = 0;
    command.tagged = 1;
    command.tag = (e->generation << NGX_HTTP_IDEM_SLOT_BITS) | e->free_slot;
    command.count = 0;

    size = sizeof(ngx_http_idem_op_t) + idem__wire_plan(&command, &plan);

    op = ngx_http_idem_alloc(e, size);
    if (op == NULL) {
        return NULL;
    }

    ngx_memzero(op, offsetof(ngx_http_idem_op_t, cmd));
    ngx_http_idem_take_slot(e, op);

    end = idem__wire_put_command((char *) op->cmd, &command, &plan, &room);

    op->room = (u_char *) room;
    op->tag = command.tag;
    op->len = (u_char *) end - op->cmd;
    op->size = size;
    op->handler = handler;
    op->data = data;
    op->resend = 1;
    op->until = ngx_current_msec + 600 * 1000;

    /* an exiting worker stays until its commands are acknowledged */

    e->ops++;
    e->bytes += op->len;
    e->sweep.cancelable = 0;

    return op;
}


void
ngx_http_idem_op_send(ngx_http_idem_engine_t *e, ngx_http_idem_op_t *op)
{
    ngx_queue_insert_tail(&e->pending, &op->queue);
    op->queued = 1;

    e->gathered++;
    e->hurry = e->hurry || op->hurry;

    if (!e->sweep.timer_set) {
        ngx_add_timer(&e->sweep, NGX_HTTP_IDEM_SWEEP);
    }

    if (e->up && !e->flush.posted) {
        ngx_post_event(&e->flush, &ngx_posted_events);
    }
}


/* the engine replied that it could not: send the same again a little later */

void
ngx_http_idem_op_again(ngx_http_idem_engine_t *e, ngx_http_idem_op_t *op)
{
    ngx_msec_t  delay;

    delay = 50 << ngx_min(op->tries, 5);
    op->tries++;

    op->again.handler = ngx_http_idem_again_handler;
    op->again.data = op;
    op->again.log = e->log;

    ngx_add_timer(&op->again, delay);
}


static void
ngx_http_idem_again_handler(ngx_event_t *ev)
{
    ngx_http_idem_op_t      *op = ev->data;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    ngx_queue_insert_tail(&e->pending, &op->queue);
    op->queued = 1;

    if (e->up && !e->flush.posted) {
        ngx_post_event(&e->flush, &ngx_posted_events);
    }
}


void
ngx_http_idem_op_cancel(ngx_http_idem_engine_t *e, ngx_http_idem_op_t *op)
{
    ngx_uint_t  i;

    if (op->queued) {
        ngx_queue_remove(&op->queue);
    }

    if (op->again.timer_set) {
        ngx_del_timer(&op->again);
    }

    i = op->tag & ((1 << NGX_HTTP_IDEM_SLOT_BITS) - 1);
    e->slots[i] = (ngx_http_idem_op_t *)
                      (e->free_slot == NGX_CONF_UNSET_UINT
                       ? (uintptr_t) -1 : (e->free_slot << 1) | 1);
    e->free_slot = i;

    e->ops--;
    e->bytes -= op->len;
    e->sweep.cancelable = (e->ops == 0);

    ngx_http_idem_free(e, op, op->size);
}
