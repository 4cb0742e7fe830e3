/*
 * What is known to be over, and what comes after what, among streams.
 *
 * Every free on a stream takes the stream's next stamp, under its lock; so the work that used the
 * block was submitted before the stamp was taken. A block may be given to work of another stream
 * when one of these is known of its stamp:
 *   - it is over: the program has waited for the stream, for an event recorded on it later, or for
 *     the whole context; or was told by a query that it need not wait; or an event of our own,
 *     recorded in a free with that stamp or a later one, has completed (stream.done);
 *   - the other stream comes after it, because the program made it wait for an event recorded later
 *     (stream.known: a vector clock; Mattern 1988, Fidge 1988);
 *   - it has an event of its own, recorded in that very free, and the other stream is made to wait
 *     for it. Never for a later one: that would make the stream wait for work that the program
 *     submitted after the free, which it does not do without the pool.
 *
 * What is put into the program's streams
 *
 * Some streams are ordered by others, through operations that are put into them: the legacy stream
 * and blocking ones (each thread's own among them) by each other, and every stream of a context by
 * a barrier of the program's (cuCtxWaitEvent). The driver's free is such an operation; its
 * allocation, its synchronise and its query are none. So
 *   - each free there puts an operation of ours in the place of the driver's. A program may lean on
 *     it without any use of the block: a wait for the stream is one for what came before the free
 *     (the legacy stream's kernel, say), and a free on the legacy stream stands between two
 *     blocking ones. Where it cannot be put there, the driver frees the block.
 *   - nothing else puts one there: it would wait for everything that was submitted before it, and
 *     make others wait, also for work that was submitted after the last free, for which nobody
 *     waits without the pool. (As the stream is destroyed one may be: nobody can wait for it any
 *     more.)
 * Its own order, and a wait for it, tell of the frees up to the last operation: up to
 * stream.joined. Nearly always those are all; not what was freed before a barrier made the stream
 * one of these. An operation serves the frees before it, too.
 * The operation is a record of an event and a wait for that event, both in the stream. A record
 * alone is not enough: in a stream without work of its own it comes after what others order before
 * it, as whoever waits for the event finds, but cuStreamQuery and cuStreamSynchronize do not see it
 * and say that the stream is idle (measured; only the legacy stream's wait for the blocking ones
 * with nothing in it). The event is one of our own where one is due anyway, which can be asked
 * about; else, and where too many of those are outstanding, one event is recorded over and over
 * that nobody asks about: the marker.
 *
 * A stream that nobody orders (created with CU_STREAM_NON_BLOCKING, no barriers) needs no marker:
 * who comes before a free on it does so by operations of its own.
 *
 * An event is also recorded in a free where the stream would otherwise leave more than its share
 * pending that nobody can ask about: such memory would come back only after all of its context's
 * work, another stream's long kernel included.
 *
 * The program's events are followed by handle. What an event stands for is noted before the driver
 * records it and published after; whoever waits for it looks before and after the driver's call,
 * and learns nothing if it was recorded anew in between. Recordings that cannot be seen (graphs
 * that record events, events of other processes) end the following of events for good.
 *
 * Locking: struct stream by its lock; events of the program by that of their shard of the table,
 * taken alone. No lock is held across a driver call.
 */
#ifndef CUDAPOOL_CORE_STREAM_ORDER_H
#define CUDAPOOL_CORE_STREAM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* No more events of our own than this are outstanding on a stream. */
#define OWN_EVENTS_MAX 64u

bool order_init(struct streams *streams);

/* ---- a stream's own knowledge ---- */

/* Everything stamped up to here is over. Any thread, no lock needed. */
void order_complete(struct stream *stream, uint64_t stamp);

static inline uint64_t order_done(const struct stream *stream)
{
    return atomic_load_explicit(&stream->done, memory_order_relaxed);
}

/* Stream's lock held. Makes clean what is over, and takes back the events that stood for it. */
void order_settle(struct stream *stream);

/* No lock held. Taken before the driver is asked or told. */
void order_take_mark(struct pool *pool, CUstream handle, struct order_mark *mark);

/* The same before the program waits for the stream, or asks about it. */
void order_take_mark_of_wait(struct pool *pool, CUstream handle, struct order_mark *mark);

/* The wait or query succeeded: all of it is over. */
void order_mark_is_over(struct pool *pool, const struct order_mark *mark);

/* The same for all streams of a context. The answer may be NULL, where memory is short; else it is
 * the caller's until it frees it. */
struct order_marks;
struct order_marks *order_take_context(struct pool *pool, const struct context *context);
void order_context_is_over(struct order_marks *marks);

/* The same where only the context's legacy stream was waited for: of blocking streams. */
void order_blocking_are_over(struct order_marks *marks);
void order_free_marks(struct order_marks *marks);

/* ---- events of our own ---- */

/* No lock held. Records an event in a free with this stamp, which has been taken, on the stream by
 * the handle that the program used; join: as an operation that others' work comes before, as
 * order_join's. NULL where none can be had. Used by the caller until it calls order_drop_user. */
struct own_event *order_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                               uint64_t stamp, bool join);

/* The same as the stream is destroyed, when later work than the free may be there: only ever to be
 * asked about. */
struct own_event *order_record_at_end(struct pool *pool, struct stream_ref ref, CUstream handle,
                                      uint64_t stamp);

/* The same over all of the context's work, which is pinned: only ever to be asked about. */
struct own_event *order_record_context(struct pool *pool, struct stream *stream, uint64_t stamp);

/* No lock held; before a capture begins, while the context's work can still be told from later
 * work: what is pending without an event gets one, over all of the context's work, that is only
 * ever asked about. From then on, until order_capture_has_come, no free that puts an operation into
 * its stream leaves anything pending without an event. */
void order_record_the_rest(struct pool *pool);
void order_capture_has_come(struct pool *pool);

/* Stream's lock held. */
bool order_capture_is_coming(const struct pool *pool);

/* Stream's lock held. */
void order_drop_user(struct stream *stream, struct own_event *event);

/* No lock held. Asks about the oldest outstanding event that covers the stamp: what the driver
 * says, or CUDA_ERROR_INVALID_HANDLE where there is none and it is not known to be over. */
CUresult order_ask(struct pool *pool, struct stream *stream, uint64_t stamp);

/* The same where the answer saves something, but the driver is a good one, too: an event that was
 * not over when it was last asked about is not asked about again before some time has passed, the
 * longer the more often that was in vain; no longer than it has been asked about, nor than a
 * millisecond. True: it is over. */
bool order_query_sparingly(struct pool *pool, struct stream *stream, uint64_t stamp);

/* True: it is over. */
bool order_query(struct pool *pool, struct stream *stream, uint64_t stamp);

/* The same until it is over, or the driver finds something wrong, or the context is about to end.
 * The context is pinned only while the driver is asked: its end waits for pins. */
CUresult order_synchronise(struct pool *pool, struct stream *stream, uint64_t stamp);

/* Stream's lock held. The stamp up to which outstanding events can be asked about; 0: none is. */
uint64_t order_newest(const struct stream *stream);

/* Stream's lock held. The first outstanding event that was recorded in a free with that stamp or a
 * later one; or the last such event. What is put behind it waits for no work of after that free. */
struct own_event *order_first_in_free(const struct stream *stream, uint64_t stamp);
struct own_event *order_last_in_free(const struct stream *stream);

/* No lock held; the caller uses the event. Makes the stream that handle means here wait for it. */
bool order_wait(struct pool *pool, CUstream handle, const struct own_event *event);

/* No lock held. The marker in a free with this stamp: puts an operation into the stream that nobody
 * will ask about. False where that was not possible. */
bool order_join(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp);

/* Stream's lock held. Bytes that it may have freed with no event behind them, the last of them from
 * that memory pool: such memory other streams get, and goes back to the driver, only when it is
 * known otherwise to be over. All streams together: the growth budget; or, while half of the device
 * is free, what the driver would keep itself, for streams that need no marker; at most a 64th of
 * the device, and nothing while memory is short. */
uint64_t order_share(const struct pool *pool, const struct stream *stream,
                     const struct mempool *mempool);

/* No lock held; where memory is short. What is pending without an event gets one where that holds
 * nobody up. It stands for later work of its stream, too, and is only ever asked about. */
void order_record_where_missing(struct pool *pool, const struct context *context);

/* The same for one stream, so that it can be waited for: over all of its context's work where the
 * stream can't be named any more, or not in this thread. */
void order_record_to_wait(struct pool *pool, struct stream *stream);

/* Stream's lock held: all its events are discarded. What is discarded is taken under the lock, put
 * before the chain, and destroyed without it; what died with its context is only forgotten. */
void order_drop_events(struct stream *stream);
void order_take_discarded(struct stream *stream, struct own_event **chain);
void order_destroy_events(struct pool *pool, struct own_event *chain);

/* ---- the program's events ---- */

/* Around the driver's record of an event: what it comes after, or NULL where that is not known or
 * the record failed. */
uint64_t order_event_begin(struct pool *pool, CUevent event);
void order_event_recorded(struct pool *pool, CUevent event, uint64_t version,
                          const struct order_mark *mark);
void order_event_destroyed(struct pool *pool, CUevent event);

/* So are all that were in this context. */
void order_context_died(struct pool *pool, const struct context *context);

/* Events that are remembered. */
size_t order_count_events(struct pool *pool);

/* Somebody records this event where we do not see it: it is not believed until it is destroyed. */
void order_event_lost(struct pool *pool, CUevent event);

/* What the event stands for now. */
void order_event_look(struct pool *pool, CUevent event, struct event_look *look);

/* The driver has answered that the event is over, or has put a stream behind it: so is all that it
 * stood for, if it still stands for the same. */
void order_event_is_over(struct pool *pool, CUevent event, const struct event_look *look);
void order_event_waited(struct pool *pool, CUevent event, const struct event_look *look,
                        CUstream handle);

/* Somebody may record events where we do not see it. */
void order_lose_events(struct pool *pool);

#endif
