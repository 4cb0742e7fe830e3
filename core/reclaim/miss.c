#include "miss.h"

#include "core/contexts/device.h"
#include "core/contexts/thread_state.h"
#include "neighbours.h"
#include "reserve.h"

bool miss_reserve(struct miss *miss)
{
    return reserve_take(miss->pool, miss->context->device, miss->bytes, miss->in_stream_order,
                        &miss->reserving_since, &miss->refusal);
}

bool miss_reserve_exactly(struct miss *miss)
{
    if (miss->bytes == miss->requested)
        return false;
    miss->bytes = miss->requested;
    return miss_reserve(miss);
}

void miss_ask(struct miss *miss)
{
    miss->result = miss->ask(miss);
}

void miss_ask_again(struct miss *miss)
{
    /* Begins with the first step each time. progress keeps its start time, which bounds the wait
     * for other processes. */
    miss->progress.step = RECLAIM_CLEAN;
    miss->progress.bytes = miss->bytes;
    miss->progress.wanted = miss->requested;
    miss->progress.in_stream_order = miss->in_stream_order;
    while (miss_is_out_of_memory(miss) &&
           reclaim_for_retry(miss->pool, miss->context->device, &miss->progress))
        miss_ask(miss);
}

void miss_ask_exactly(struct miss *miss)
{
    if (!miss_is_out_of_memory(miss) || miss->bytes == miss->requested)
        return;
    device_unreserve(miss->context->device, miss->bytes - miss->requested);
    miss->bytes = miss->requested;
    miss_ask(miss);
}

bool miss_ask_beyond_device(struct miss *miss)
{
    if (miss->requested <= miss->context->device->total_bytes)
        return false;
    /* Reserves nothing beforehand: so many bytes would make other threads' requests exceed every
     * limit meanwhile. */
    miss->bytes = miss->requested;
    miss_ask(miss);
    if (miss->result != CUDA_SUCCESS)
        miss->bytes = 0;
    device_reserve(miss->context->device, miss->bytes);
    return true;
}

void miss_note_met(const struct miss *miss)
{
    counter_raise_shared(&miss->context->device->largest_request, miss->requested);
    neighbours_note_taken(miss->context->device, miss->bytes);
}

void miss_count_request(const struct miss *miss, struct bucket_counters *counters)
{
    counter_add(&counters->requested_bytes, miss->requested);
    thread_count_wait(counters);
}

void miss_count_outcome(const struct miss *miss, struct bucket_counters *counters, bool recorded)
{
    bool met = miss->result == CUDA_SUCCESS;
    counter_add(bucket_outcome(counters, met, miss_is_out_of_memory(miss)), 1);
    if (met && !recorded)
        bucket_count_lost(counters);
}

void miss_count_refusal(struct miss *miss, struct bucket_counters *counters)
{
    miss->result = CUDA_ERROR_OUT_OF_MEMORY;
    miss_count_request(miss, counters);
    counter_add(&counters->failures[miss->refusal], 1);
}
