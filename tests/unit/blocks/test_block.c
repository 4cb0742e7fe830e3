/*
 * Records, lists, and the table from pointers to records.
 */
#include <criterion/criterion.h>

#include <pthread.h>
#include <stdatomic.h>

#include "core/blocks/block.h"

#define ADDRESS UINT64_C(0x7f1234567800)

static struct block_table table;

/* Records, and the numbers of lives, are guarded by the lock of their heap. */
static struct short_lock lock_of_heap;

static void set_up(void)
{
    lock_take(&lock_of_heap, LOCK_CONTEXT);
    cr_assert(block_table_init(&table));
}

TestSuite(block, .init = set_up);

Test(block, the_table_finds_what_was_inserted)
{
    struct block one = {0}, other = {0};
    cr_assert_null(block_table_find(&table, ADDRESS));
    cr_assert(block_table_insert(&table, ADDRESS, &one));
    cr_assert(block_table_insert(&table, ADDRESS + 256, &other));
    cr_assert_eq(block_table_find(&table, ADDRESS), &one);
    cr_assert_eq(block_table_find(&table, ADDRESS + 256), &other);
}

Test(block, addresses_that_differ_in_one_bit_are_different)
{
    static struct block blocks[49];
    for (unsigned bit = 8; bit < 49; bit++)
        cr_assert(block_table_insert(&table, UINT64_C(1) << bit, &blocks[bit]));
    for (unsigned bit = 8; bit < 49; bit++)
        cr_assert_eq(block_table_find(&table, UINT64_C(1) << bit), &blocks[bit]);
}

Test(block, only_the_first_address_of_a_block_is_its_own)
{
    struct block block = {0};
    cr_assert(block_table_insert(&table, ADDRESS, &block));
    cr_assert_null(block_table_find(&table, ADDRESS + 1));
    cr_assert_null(block_table_find(&table, ADDRESS + 255));
    cr_assert_null(block_table_find(&table, ADDRESS - 256));
}

Test(block, odd_and_far_addresses_have_no_place)
{
    struct block block = {0};
    CUdeviceptr addresses[] = {ADDRESS + 8, UINT64_C(1) << 49, UINT64_C(1) << 63, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        cr_assert_not(block_table_insert(&table, addresses[i], &block));
        cr_assert_null(block_table_find(&table, addresses[i]));
    }
}

Test(block, the_null_pointer_is_nobodys)
{
    struct block block = {0};
    cr_assert_not(block_table_insert(&table, 0, &block));
    cr_assert_null(block_table_find(&table, 0));
}

Test(block, removing_takes_out_only_this_block)
{
    struct block one = {0}, other = {0};
    cr_assert(block_table_insert(&table, ADDRESS, &one));
    block_table_remove(&table, ADDRESS, &other);
    cr_assert_eq(block_table_find(&table, ADDRESS), &one);
    cr_assert(block_table_insert(&table, ADDRESS, &other));
    block_table_remove(&table, ADDRESS, &one);
    cr_assert_eq(block_table_find(&table, ADDRESS), &other);
    block_table_remove(&table, ADDRESS, &other);
    cr_assert_null(block_table_find(&table, ADDRESS));
    block_table_remove(&table, UINT64_C(0x1000000000), &other);
}

/* ---- blocks around an address ---- */

#define MIB (UINT64_C(1) << 20)

static struct block around[6];

static void insert(struct block *block, CUdeviceptr address, uint64_t bytes)
{
    block_set(block, address, BLOCK_LIVE);
    block_set_bytes(block, bytes);
    cr_assert(block_table_insert(&table, address, block));
}

static void insert_all_around(void)
{
    insert(&around[0], 40 * MIB, 512);
    insert(&around[1], 40 * MIB + 512, 2048);
    insert(&around[2], 42 * MIB, 2 * MIB);
    insert(&around[3], 46 * MIB, 100 * MIB);
    insert(&around[4], 146 * MIB, 256);
    insert(&around[5], UINT64_C(1) << 35, 65 * (UINT64_C(1) << 30));
}

Test(block, an_address_inside_leads_to_its_block)
{
    insert_all_around();
    for (int i = 0; i < 6; i++) {
        CUdeviceptr first = block_address(&around[i]), last = first + around[i].bytes - 1;
        for (CUdeviceptr address = first; address <= last; address += around[i].bytes / 64 + 1)
            cr_assert_eq(block_table_find_around(&table, address), &around[i]);
        cr_assert_eq(block_table_find_around(&table, last), &around[i]);
    }
}

Test(block, beyond_a_block_there_is_none_or_the_last_one)
{
    insert_all_around();
    cr_assert_null(block_table_find_around(&table, 40 * MIB - 1));
    cr_assert_null(block_table_find_around(&table, 0));
    cr_assert_null(block_table_find_around(&table, UINT64_C(1) << 49));
    cr_assert_null(block_table_find_around(&table, UINT64_MAX));
    cr_assert_eq(block_table_find_around(&table, 40 * MIB + 2560), &around[1]);
    cr_assert_eq(block_table_find_around(&table, 41 * MIB), &around[1]);
}

Test(block, what_is_removed_is_around_nothing)
{
    insert_all_around();
    for (int i = 0; i < 6; i++)
        block_table_remove(&table, block_address(&around[i]), &around[i]);
    for (int i = 0; i < 6; i++) {
        CUdeviceptr first = block_address(&around[i]);
        cr_assert_null(block_table_find_around(&table, first));
        cr_assert_null(block_table_find_around(&table, first + around[i].bytes / 2));
        cr_assert_null(block_table_find_around(&table, first + around[i].bytes - 1));
    }
}

Test(block, a_neighbour_in_the_same_pages_stays)
{
    insert_all_around();
    block_table_remove(&table, block_address(&around[0]), &around[0]);
    cr_assert_eq(block_table_find_around(&table, 40 * MIB + 600), &around[1]);
    cr_assert_null(block_table_find_around(&table, 40 * MIB));
    insert(&around[0], 40 * MIB, 512);
    block_table_remove(&table, block_address(&around[1]), &around[1]);
    cr_assert_eq(block_table_find_around(&table, 40 * MIB + 600), &around[0]);
}

/* Between blocks that come and go, as they do where the driver gives an address out again. */
Test(block, an_address_belongs_to_its_last_owner)
{
    insert(&around[0], 8 * MIB, 16 * MIB);
    block_table_remove(&table, 8 * MIB, &around[0]);
    insert(&around[1], 4 * MIB, 32 * MIB);
    block_table_remove(&table, 8 * MIB, &around[0]);
    cr_assert_eq(block_table_find_around(&table, 20 * MIB), &around[1]);
    cr_assert_eq(block_table_find_around(&table, 8 * MIB), &around[1]);
}

/* ---- lookups while the table grows ---- */

#define SPREAD (UINT64_C(1) << 21)
#define BLOCKS 4000

static struct block spread[BLOCKS];
static atomic_int inserted;

static void *insert_all(void *unused)
{
    (void)unused;
    for (int i = 0; i < BLOCKS; i++) {
        if (!block_table_insert(&table, SPREAD * (CUdeviceptr)(i + 1), &spread[i]))
            break;
        atomic_store(&inserted, i + 1);
    }
    return NULL;
}

Test(block, lookups_need_no_lock_while_the_table_grows)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, insert_all, NULL), 0);
    int known = 0;
    while (known < BLOCKS) {
        known = atomic_load(&inserted);
        for (int i = 0; i < known; i += 97)
            cr_assert_eq(block_table_find(&table, SPREAD * (CUdeviceptr)(i + 1)), &spread[i]);
        for (int i = known + 1; i < BLOCKS; i += 97) {
            struct block *found = block_table_find(&table, SPREAD * (CUdeviceptr)(i + 1));
            cr_assert(!found || found == &spread[i]);
        }
    }
    pthread_join(thread, NULL);
}

/* ---- lists ---- */

static void check_list(const struct block_list *list, struct block **expected, int count)
{
    struct block *block = list->first, *previous = NULL;
    for (int i = 0; i < count; i++) {
        cr_assert_eq(block, expected[i]);
        cr_assert_eq(block->links[LINK_BUCKET].previous, previous);
        previous = block;
        block = block->links[LINK_BUCKET].next;
    }
    cr_assert_null(block);
    cr_assert_eq(list->last, previous);
}

Test(block, a_list_keeps_the_order_in_which_blocks_came)
{
    static struct block b[3];
    struct block_list list = {NULL, NULL};
    for (int i = 0; i < 3; i++)
        block_list_append(&list, &b[i], LINK_BUCKET);
    check_list(&list, (struct block *[]){&b[0], &b[1], &b[2]}, 3);
    block_list_remove(&list, &b[1], LINK_BUCKET);
    check_list(&list, (struct block *[]){&b[0], &b[2]}, 2);
    block_list_append(&list, &b[1], LINK_BUCKET);
    block_list_remove(&list, &b[0], LINK_BUCKET);
    check_list(&list, (struct block *[]){&b[2], &b[1]}, 2);
    block_list_remove(&list, &b[1], LINK_BUCKET);
    block_list_remove(&list, &b[2], LINK_BUCKET);
    check_list(&list, NULL, 0);
}

/* ---- records ---- */

#define HEAP_OF_RECORDS ((struct heap *)0x1000)

static void count_record(struct block *block, void *argument)
{
    (void)block;
    ++*(unsigned *)argument;
}

Test(block, records_belong_to_their_heap_for_good)
{
    struct block_records records = {NULL, NULL};
    struct block *taken[300];
    unsigned seen = 0;
    for (int i = 0; i < 300; i++) {
        taken[i] = block_records_take(&records, HEAP_OF_RECORDS);
        cr_assert_not_null(taken[i]);
        cr_assert_eq(taken[i]->heap, HEAP_OF_RECORDS);
        cr_assert_eq(block_state(taken[i]), BLOCK_UNUSED);
        block_set_state(taken[i], BLOCK_LIVE);
    }
    block_records_visit(&records, count_record, &seen);
    cr_assert_eq(seen, 300);
    block_records_put(&records, taken[7]);
    cr_assert_eq(taken[7]->heap, HEAP_OF_RECORDS);
    seen = 0;
    block_records_visit(&records, count_record, &seen);
    cr_assert_eq(seen, 299);
}

Test(block, a_record_that_is_taken_again_remembers_nothing)
{
    struct block_records records = {NULL, NULL};
    struct block *block = block_records_take(&records, HEAP_OF_RECORDS);
    block_set(block, ADDRESS, BLOCK_LIVE);
    cr_assert(block_share(block, ADDRESS));
    counter_set(&block->epoch, 5);
    block_records_put(&records, block);
    cr_assert_eq(block_records_take(&records, HEAP_OF_RECORDS), block);
    cr_assert_eq(block_address(block), 0);
    cr_assert_not(block_is_shared(block));
    cr_assert_eq(counter_get(&block->epoch), 0);
    cr_assert_eq(block_state(block), BLOCK_UNUSED);
}

Test(block, of_two_claims_one_wins)
{
    struct block_records records = {NULL, NULL};
    struct block *block = block_records_take(&records, HEAP_OF_RECORDS);
    block_set(block, ADDRESS, BLOCK_LIVE);
    cr_assert_not(block_claim(block, ADDRESS + 256, BLOCK_PENDING), "another address is claimed");
    cr_assert(block_claim(block, ADDRESS, BLOCK_PENDING));
    cr_assert_eq(block_state(block), BLOCK_PENDING);
    cr_assert_eq(block_address(block), ADDRESS);
    cr_assert_not(block_claim(block, ADDRESS, BLOCK_LEAVING));
    cr_assert_eq(block_state(block), BLOCK_PENDING);
}

Test(block, a_shared_block_is_claimed_and_stays_marked)
{
    struct block_records records = {NULL, NULL};
    struct block *block = block_records_take(&records, HEAP_OF_RECORDS);
    block_set(block, ADDRESS, BLOCK_LIVE);
    cr_assert_not(block_share(block, ADDRESS + 256));
    cr_assert(block_share(block, ADDRESS));
    cr_assert(block_is_live_at(block, ADDRESS));
    cr_assert(block_claim(block, ADDRESS, BLOCK_LEAVING));
    cr_assert(block_is_shared(block));
    cr_assert_not(block_share(block, ADDRESS), "what is not live is shared");
}

Test(block, a_life_has_one_number_and_the_next_one_another)
{
    struct block_records records = {NULL, NULL};
    struct block *block = block_records_take(&records, HEAP_OF_RECORDS);
    counter next = 7;
    block_set(block, ADDRESS, BLOCK_LIVE);
    cr_assert_eq(block_name(block, ADDRESS, &next), 7);
    cr_assert_eq(block_name(block, ADDRESS, &next), 7);
    cr_assert_not(block_claim_at_once(block, ADDRESS, BLOCK_CACHED),
                  "the fast path takes a named block");
    cr_assert(block_is_live_at(block, ADDRESS));
    cr_assert(block_claim(block, ADDRESS, BLOCK_PENDING));
    cr_assert_eq(block_name(block, ADDRESS, &next), 0);
    block_set_state(block, BLOCK_LIVE);
    uint64_t second = block_name(block, ADDRESS, &next);
    cr_assert(second > 7);
    cr_assert(block_share(block, ADDRESS));
    cr_assert_eq(block_name(block, ADDRESS, &next), second, "a shared block is named, too");
}
