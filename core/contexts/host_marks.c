#include "host_marks.h"

#include "core/base/lock.h"
#include "core/base/numbers.h"

static void refresh_limit(struct host_work *work)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t limit = work->submitting ? work->submitting_before : UINT64_MAX;
    for (unsigned i = 0; i < work->count; i++)
        limit = smaller_of(limit, work->marks[i].before);
    atomic_store_explicit(&work->limit, limit, memory_order_relaxed);
}

/* The mark that new work is merged into, or a new mark. Work submitted after the same fence shares
 * one. */
static struct host_mark *find_place(struct host_work *work, uint64_t before)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    for (unsigned i = 0; i < work->count; i++)
        if (work->marks[i].before == before)
            return &work->marks[i];
    if (work->count == HOST_MARKS)
        return &work->marks[HOST_MARKS - 1];
    work->marks[work->count] = (struct host_mark){.before = before};
    return &work->marks[work->count++];
}

void host_work_submitting(struct host_work *work, uint64_t before)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    work->submitting_before =
        work->submitting ? smaller_of(work->submitting_before, before) : before;
    work->submitting++;
    refresh_limit(work);
}

void host_work_submitted(struct host_work *work)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    work->submitting--;
    refresh_limit(work);
}

bool host_work_may_free(struct host_work *work)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    bool may = !host_work_goes_on(work);
    work->freeing += may;
    return may;
}

void host_work_has_freed(struct host_work *work)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    work->freeing--;
}

void host_work_mark(struct host_work *work, uint64_t before, uint64_t after, bool known)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct host_mark *mark = find_place(work, before);
    mark->known |= known;
    mark->before = smaller_of(mark->before, before);
    if (mark->after < after)
        mark->after = after;
    refresh_limit(work);
}

void host_work_note_unwaited(struct host_work *work, uint64_t epoch)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    work->unwaited = larger_of(work->unwaited, epoch);
}

bool host_work_is_unwaited(const struct host_work *work, uint64_t clean)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return work->unwaited > clean;
}

bool host_work_is_known(const struct host_work *work)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    bool known = work->submitting > 0;
    for (unsigned i = 0; i < work->count; i++)
        known |= work->marks[i].known;
    return known;
}

void host_work_clean(struct host_work *work, uint64_t epoch)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    unsigned kept = 0;
    if (work->unwaited <= epoch)
        work->unwaited = 0;
    if (work->count == 0)
        return;
    for (unsigned i = 0; i < work->count; i++)
        if (work->marks[i].after > epoch)
            work->marks[kept++] = work->marks[i];
    work->count = kept;
    refresh_limit(work);
}

void host_work_reset(struct host_work *work)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    work->count = 0;
    work->unwaited = 0;
    refresh_limit(work);
}
