#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include <dlfcn.h>
#include "tests/e2e/pool.h"
enum { WORDS = 1024 };
static struct kernels kernels;
CUcontext the_context;
static void furnish(void) { open_primary(); load_kernels(&kernels); CU(cuCtxGetCurrent(&the_context)); }
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}
static const char*names[]={"cuMemAlloc_v2","cuMemFree_v2","cuMemFreeAsync","cuStreamSynchronize","cuCtxRecordEvent","cuEventQuery","cuCtxWaitEvent","cuMemGetInfo_v2","cuCtxPushCurrent_v2","cuEventCreate",0};
static uint64_t base[20];
static void mark(void){for(int i=0;names[i];i++)base[i]=simcuda_calls(names[i]);}
static void show(const char*what,double pairs,double seconds){printf("%-28s %8.2f us/pair; per 1000:",what,seconds*1e6/pairs);for(int i=0;names[i];i++)printf(" %s %.1f",names[i]+2,(simcuda_calls(names[i])-base[i])*1000./pairs);
 printf("; peak %llu MiB\n",(unsigned long long)simcuda_peak_device_bytes()>>20);}
static void ctor(void){furnish(); void*l=dlopen("ctorlib.so",RTLD_NOW|RTLD_GLOBAL); if(!l)puts(dlerror()); else puts("loaded");}
/* short threads: so many pairs each */
static int short_pairs;
static void*short_thread(void*u){CU(cuCtxSetCurrent(the_context));for(int i=0;i<short_pairs;i++){CUdeviceptr p=take(1<<20);CU(cuMemFree_v2(p));}return 0;}
static void short_threads(void){furnish();
 int ns[]={1,4,32};
 for(int k=0;k<3;k++){short_pairs=ns[k];int threads=1000;mark();double s=now();
 for(int i=0;i<threads;i+=4){pthread_t t[4];for(int j=0;j<4;j++)pthread_create(t+j,0,short_thread,0);for(int j=0;j<4;j++)pthread_join(t[j],0);}
 char b[40];sprintf(b,"short threads x %d",short_pairs);show(b,threads*(double)short_pairs,now()-s);}
 for(int k=0;k<3;k++){short_pairs=ns[k];int threads=1000;mark();double s=now();
 for(int i=0;i<threads;i++){pthread_t t;pthread_create(&t,0,short_thread,0);pthread_join(t,0);}
 char b[40];sprintf(b,"one at a time x %d",short_pairs);show(b,threads*(double)short_pairs,now()-s);}
}
/* producer, consumer: with kernel */
struct q{CUdeviceptr a[64];volatile unsigned h,t;pthread_mutex_t m;};
static struct q*qs; static size_t pc_bytes; static int pc_kernel,pc_n, pc_mixed;
static size_t size_of(unsigned i){static size_t s[]={1<<10,5000,20000,100<<10,300<<10,1<<20,(size_t)3<<20,(size_t)7<<20,(size_t)12<<20,(size_t)24<<20};return pc_mixed?s[(i*7+i/10)%10]:pc_bytes;}
static void*producer(void*u){struct q*q=u;CU(cuCtxSetCurrent(the_context));CUstream s=new_stream();for(int i=0;i<pc_n;i++){while(q->h-q->t>=32)sched_yield();CUdeviceptr p=take(size_of(i));if(pc_kernel)fill(&kernels,s,p,16,1);q->a[q->h%64]=p;__sync_synchronize();q->h++;}CU(cuStreamSynchronize(s));return 0;}
static void*consumer(void*u){struct q*q=u;CU(cuCtxSetCurrent(the_context));for(int i=0;i<pc_n;i++){while(q->h==q->t)sched_yield();CUdeviceptr p=q->a[q->t%64];__sync_synchronize();q->t++;CU(cuMemFree_v2(p));}return 0;}
static void pc(void){furnish();for(int mixed=0;mixed<2;mixed++)for(int k=0;k<2;k++)for(int pairs=1;pairs<=4;pairs*=2){pc_mixed=mixed;pc_kernel=k;pc_n=3000;pc_bytes=1<<20;qs=calloc(8,sizeof*qs);mark();double s=now();pthread_t t[16];for(int i=0;i<pairs;i++){pthread_create(t+2*i,0,producer,qs+i);pthread_create(t+2*i+1,0,consumer,qs+i);}for(int i=0;i<2*pairs;i++)pthread_join(t[i],0);char b[60];sprintf(b,"pc %s k%d pairs%d",mixed?"mixed":"1MiB",k,pairs);show(b,pairs*(double)pc_n,now()-s);}}
#include "more.h"
static const struct test_case cases[] = {
    {"ctor", ctor},{"short_threads",short_threads},{"pc",pc},
    MORE
    {0},
};
int main(int argc, char **argv) { setvbuf(stdout,0,_IOLBF,0); return run_case(argc, argv, cases); }
