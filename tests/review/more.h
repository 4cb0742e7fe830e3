#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/seccomp.h>
#include <linux/filter.h>
/* idle: 60 blocks once, then one pair at a time */
static void idle(void){furnish();CUdeviceptr p[60];for(int i=0;i<60;i++)p[i]=take(1<<20);for(int i=0;i<60;i++)CU(cuMemFree_v2(p[i]));
 double s=now(),n=0;while(now()-s<12){for(int i=0;i<200;i++){CUdeviceptr q=take(1<<20);CU(cuMemFree_v2(q));}usleep(2000);if(now()-s>n){n+=2;if(has_pool()){struct cudapool_bytes b=pool_bytes();printf("%.0f s: live %llu cached %llu pending %llu MiB\n",now()-s,b.live>>20,b.cached>>20,b.pending>>20);}}}}
/* fine: others hit while one misses */
static volatile int stop;static size_t hit_bytes;
static void*hitter(void*u){CU(cuCtxSetCurrent(the_context));while(!stop){CUdeviceptr p[4];for(int i=0;i<4;i++)p[i]=take(hit_bytes);for(int i=0;i<4;i++)CU(cuMemFree_v2(p[i]));}return 0;}
static void fine(void){furnish();hit_bytes=(1<<20);pthread_t t[3];CUdeviceptr big=take((size_t)200<<20);for(int i=0;i<3;i++)pthread_create(t+i,0,hitter,0);usleep(200000);
 mark();double s=now();int n=0;CUdeviceptr keep[3000];
 for(int r=0;r<1500;r++){keep[n++]=take(1100000+0*r);if(n==60){for(int i=0;i<n;i++)CU(cuMemFree_v2(keep[i]));n=0;cuCtxSynchronize();if(cudapool_trim)cudapool_trim();pthread_testcancel();}}
 stop=1;for(int i=0;i<3;i++)pthread_join(t[i],0);show("fine",1500,now()-s);}
/* cancel in the nap */
static void*canceled(void*u){CU(cuCtxSetCurrent(the_context));for(;;){CUdeviceptr p=take(5<<20);CU(cuMemFree_v2(p));if(cudapool_trim)cudapool_trim();for(int i=0;i<2000;i++)if(i==1999)pthread_testcancel();}return 0;}
static void refuse_membarrier(void){struct sock_filter f[]={BPF_STMT(BPF_LD|BPF_W|BPF_ABS,offsetof(struct seccomp_data,nr)),BPF_JUMP(BPF_JMP|BPF_JEQ|BPF_K,SYS_membarrier,0,1),BPF_STMT(BPF_RET|BPF_K,SECCOMP_RET_ERRNO|1),BPF_STMT(BPF_RET|BPF_K,SECCOMP_RET_ALLOW)};
 struct sock_fprog p={4,f};prctl(PR_SET_NO_NEW_PRIVS,1,0,0,0);if(syscall(SYS_seccomp,SECCOMP_SET_MODE_FILTER,SECCOMP_FILTER_FLAG_TSYNC,&p))perror("seccomp");}
static void cancel(void){furnish();CUdeviceptr q=take(5<<20);CU(cuMemFree_v2(q));refuse_membarrier();pthread_t t;pthread_create(&t,0,canceled,0);usleep(5000);pthread_cancel(t);pthread_join(t,0);puts("cancelled");q=take(5<<20);CU(cuMemFree_v2(q));puts("fine");}
/* many sizes, a ring of live blocks each */
static int ms_n,ms_ring,ms_kernel;static size_t ms_most;
static void*many(void*u){unsigned long long x=88172645463325252ull+(uintptr_t)u*7919;CU(cuCtxSetCurrent(the_context));CUstream st=new_stream();CUdeviceptr r[64]={0};
 for(int i=0;i<ms_n;i++){x^=x<<13;x^=x>>7;x^=x<<17;double e=(x>>11)*(1.0/9007199254740992.0);int lg=10;size_t b=1024;double span=0;for(size_t z=ms_most;z>1024;z>>=1)span++;double v=e*span;b=(size_t)(1024.0*__builtin_exp2(v));int k=i%ms_ring;if(r[k])CU(cuMemFree_v2(r[k]));r[k]=take(b);if(ms_kernel)fill(&kernels,st,r[k],16,1);}
 for(int k=0;k<ms_ring;k++)if(r[k])CU(cuMemFree_v2(r[k]));CU(cuStreamSynchronize(st));return 0;}
static void many_sizes(void){furnish();for(int k=0;k<2;k++)for(int ring=1;ring<=16;ring*=4)for(int th=1;th<=8;th*=2){ms_n=16000/th;ms_ring=ring;ms_kernel=k;ms_most=24<<20;if(th*ring*3.5>800)continue;mark();double s=now();pthread_t t[8];for(int i=0;i<th;i++)pthread_create(t+i,0,many,(void*)(intptr_t)i);for(int i=0;i<th;i++)pthread_join(t[i],0);char b[60];sprintf(b,"sizes k%d ring%d th%d",k,ring,th);show(b,ms_n*(double)th,now()-s);}}
#define MORE {"idle",idle},{"fine",fine},{"cancel",cancel},{"many_sizes",many_sizes},
static void sizes1(void){furnish();sscanf(getenv("S"),"%d,%d,%d,%d",&ms_kernel,&ms_ring,&hit_bytes,&ms_n);int th=(int)hit_bytes;ms_most=24<<20;for(int rep=0;rep<3;rep++){mark();double s=now();pthread_t t[16];for(int i=0;i<th;i++)pthread_create(t+i,0,many,(void*)(intptr_t)i);for(int i=0;i<th;i++)pthread_join(t[i],0);char b[60];sprintf(b,"sizes k%d ring%d th%d",ms_kernel,ms_ring,th);show(b,ms_n*(double)th,now()-s);}}

static void*hitter2(void*u){CU(cuCtxSetCurrent(the_context));unsigned n=0;while(!stop){CUdeviceptr p[4];for(int i=0;i<4;i++)p[i]=take(1<<20);for(int i=0;i<4;i++)CU(cuMemFree_v2(p[i]));}return 0;}
static void cancel2(void){furnish();pthread_t h[6];for(int i=0;i<6;i++)pthread_create(h+i,0,hitter2,0);
 for(int r=0;r<400;r++){pthread_t t;pthread_create(&t,0,canceled,0);usleep(2000+r*37%5000);pthread_cancel(t);pthread_join(t,0);CUdeviceptr q=take(5<<20);CU(cuMemFree_v2(q));if(r%50==0)printf("%d\n",r);}stop=1;for(int i=0;i<6;i++)pthread_join(h[i],0);puts("fine");}
/* out of memory: threads fill caches and idle; then one takes nearly all */
static pthread_barrier_t bar;
static void*stasher(void*u){CU(cuCtxSetCurrent(the_context));CUstream s=new_stream();for(int r=0;r<3;r++){CUdeviceptr p[40];int n=0;for(size_t b=1<<10;b<=(4<<20);b*=2)for(int k=0;k<2;k++)p[n++]=take(b+(uintptr_t)u%3);for(int i=0;i<n;i++)fill(&kernels,s,p[i],16,1);for(int i=0;i<n;i++)CU(cuMemFree_v2(p[i]));}CU(cuStreamSynchronize(s));pthread_barrier_wait(&bar);pthread_barrier_wait(&bar);return 0;}
static void oom(void){furnish();pthread_barrier_init(&bar,0,17);pthread_t t[16];for(int i=0;i<16;i++)pthread_create(t+i,0,stasher,(void*)(intptr_t)i);pthread_barrier_wait(&bar);
 size_t f,tot;CU(cuMemGetInfo_v2(&f,&tot));printf("free %zu of %zu MiB\n",f>>20,tot>>20);if(has_pool()){struct cudapool_bytes b=pool_bytes();printf("live %llu cached %llu pending %llu KiB\n",b.live>>10,b.cached>>10,b.pending>>10);}
 CU(cuMemGetInfo_v2(&f,&tot));CUdeviceptr p=0;double s=now();mark();CUresult r=cuMemAlloc_v2(&p,f-(2<<20));printf("all of it: %d in %.1f ms\n",r,(now()-s)*1e3);show("oom",1,now()-s);if(!r)CU(cuMemFree_v2(p));pthread_barrier_wait(&bar);for(int i=0;i<16;i++)pthread_join(t[i],0);}
/* contexts: 4 threads, 4 contexts each in turn */
static CUcontext cx[8];static int ncx;
static void*cxw(void*u){for(int i=0;i<4000;i++){CU(cuCtxSetCurrent(cx[(i/ms_ring)%ncx]));CUdeviceptr p=take(1<<20);CU(cuMemFree_v2(p));}return 0;}
static void contexts(void){furnish();for(ncx=2;ncx<=8;ncx*=2){for(int i=0;i<ncx;i++)if(!cx[i])CU(cuCtxCreate_v2(&cx[i],0,0));for(ms_ring=1;ms_ring<=64;ms_ring*=64)for(int th=1;th<=4;th*=4){pthread_t t[4];mark();double s=now();for(int i=0;i<th;i++)pthread_create(t+i,0,cxw,0);for(int i=0;i<th;i++)pthread_join(t[i],0);char b[60];sprintf(b,"contexts %d run %d th %d",ncx,ms_ring,th);show(b,th*4000.,now()-s);}}}
/* frees on another thread's context etc: burst phases by different threads in turn */
static void*phase(void*u){CU(cuCtxSetCurrent(the_context));for(int r=0;r<4;r++){CUdeviceptr p[24];for(int i=0;i<24;i++)p[i]=take(size_of(i)/2+1);for(int i=0;i<24;i++)CU(cuMemFree_v2(p[i]));}return 0;}
static void*phase_forever(void*u){for(;;){pthread_barrier_wait(&bar);if(stop)return 0;pthread_mutex_lock((pthread_mutex_t*)u);phase(0);pthread_mutex_unlock((pthread_mutex_t*)u);pthread_barrier_wait(&bar);}}
static void phases(void){furnish();pc_mixed=1;for(int th=2;th<=16;th*=2){static pthread_mutex_t m=PTHREAD_MUTEX_INITIALIZER;stop=0;pthread_t t[16];pthread_barrier_init(&bar,0,th+1);for(int i=0;i<th;i++)pthread_create(t+i,0,phase_forever,&m);mark();double s=now();for(int r=0;r<30;r++){pthread_barrier_wait(&bar);pthread_barrier_wait(&bar);}double e=now();stop=1;pthread_barrier_wait(&bar);for(int i=0;i<th;i++)pthread_join(t[i],0);char b[60];sprintf(b,"phases th %d",th);show(b,30.*th*96,e-s);}}
/* raw fork, exit in the child */
static void*locker(void*u){CU(cuCtxSetCurrent(the_context));while(!stop){CUdeviceptr p=take(40<<20);CU(cuMemFree_v2(p));}return 0;}
#include <sys/wait.h>
static void rawfork(void){furnish();CUdeviceptr q=take(1<<20);CU(cuMemFree_v2(q));pthread_t t[3];for(int i=0;i<3;i++)pthread_create(t+i,0,locker,0);int hung=0;for(int r=0;r<100;r++){pid_t c=syscall(SYS_fork);if(c==0)exit(0);int st;double s=now();while(waitpid(c,&st,WNOHANG)==0&&now()-s<2)usleep(200);if(now()-s>=2){hung++;kill(c,9);waitpid(c,&st,0);}if(hung>2)break;}stop=1;for(int i=0;i<3;i++)pthread_join(t[i],0);printf("%d children hung\n",hung);}

static _Atomic int ooms;
static void*limited(void*u){CU(cuCtxSetCurrent(the_context));CUstream st=new_stream();unsigned x=(uintptr_t)u*77+5;for(int i=0;i<1500;i++){x=x*1103515245+12345;size_t b=((x>>16)%7+1)*(1<<20)+ (x>>8)%4096;CUdeviceptr p=0;CUresult r=cuMemAlloc_v2(&p,b);if(r){ooms++;continue;}if(ms_kernel)fill(&kernels,st,p,16,1);CU(cuMemFree_v2(p));}CU(cuStreamSynchronize(st));return 0;}
static void limit(void){furnish();int th=getenv("TH")?atoi(getenv("TH")):7;for(ms_kernel=0;ms_kernel<2;ms_kernel++){ooms=0;mark();double s=now();pthread_t t[32];for(int i=0;i<th;i++)pthread_create(t+i,0,limited,(void*)(intptr_t)i);for(int i=0;i<th;i++)pthread_join(t[i],0);char b[60];sprintf(b,"limit k%d: ooms %d",ms_kernel,ooms);show(b,th*1500.,now()-s);}}
static void info(void){furnish();size_t f,t;CUdeviceptr p[400];int n=0;for(int r=0;r<1;r++){for(int i=0;i<300;i++)p[n++]=take((size_t)(i%30+1)*37000);while(n)CU(cuMemFree_v2(p[--n]));}CU(cuMemGetInfo_v2(&f,&t));CUresult r=cuMemAlloc_v2(p,f);printf("free %zu KiB of %zu, all of it: %d\n",f>>10,t>>10,r);
 if(!r)CU(cuMemFree_v2(p[0]));}

static __thread int slow_thread;static volatile int is_recording;
static void slow_record(const char*n){if(slow_thread&&!is_recording){is_recording=1;sleep_ms(1500);}}
static void*recorder(void*u){CU(cuCtxSetCurrent(the_context));slow_thread=1;for(int i=0;i<200&&!is_recording;i++){CUdeviceptr p=take(1<<20);CU(cuMemFree_v2(p));}return 0;}
static void oom_record(void){furnish();CUdeviceptr p=take((size_t)300<<20),q=0;simcuda_set_callback("cuCtxRecordEvent",slow_record);pthread_t t;pthread_create(&t,0,recorder,0);if(has_pool())while(!is_recording)usleep(100);else usleep(10000);
 CU(cuMemFree_v2(p));double s=now();CUresult r=cuMemAlloc_v2(&q,(size_t)750<<20);printf("750 MiB: %d in %.0f ms\n",r,(now()-s)*1e3);if(!r)CU(cuMemFree_v2(q));pthread_join(t,0);}

/* first use: threads that start together, 16 of them, own streams, 1 MiB, kernel of u us */
static int ov_us,ov_n;
static void*overlapper(void*u){CU(cuCtxSetCurrent(the_context));CUstream s=new_stream();for(int i=0;i<ov_n;i++){CUdeviceptr p=take(ms_most);spin_then_verify(&kernels,s,(unsigned long long)ov_us*1000,p,1,0,p+64);CU(cuMemFree_v2(p));}CU(cuStreamSynchronize(s));return 0;}
static void overlap(void){furnish();size_t sz[]={64<<10,1<<20,4<<20,12<<20};for(int z=0;z<4;z++)for(int th=1;th<=16;th*=4)for(ov_us=20;ov_us<=200;ov_us*=10){ms_most=sz[z];ov_n=300;for(int rep=0;rep<2;rep++){mark();double s=now();pthread_t t[16];for(int i=0;i<th;i++)pthread_create(t+i,0,overlapper,0);for(int i=0;i<th;i++)pthread_join(t[i],0);if(rep){char b[60];sprintf(b,"overlap %zuK th%d %dus",ms_most>>10,th,ov_us);show(b,th*(double)ov_n,now()-s);}}}}
/* threads that only free large, alloc by main; live blocks many */
static void live(void){furnish();static CUdeviceptr p[20000];for(int n=1000;n<=20000;n*=20){for(int i=0;i<n;i++)p[i]=take(20000);mark();double s=now();for(int i=0;i<20000;i++){CUdeviceptr q=take(20000);CU(cuMemFree_v2(q));}char b[60];sprintf(b,"live %d",n);show(b,20000,now()-s);mark();s=now();for(int i=0;i<n;i++)CU(cuMemFree_v2(p[i]));show("  freed",n,now()-s);mark();s=now();for(int i=0;i<n;i++)p[i]=take(20000);show("  taken again",n,now()-s);for(int i=0;i<n;i++)CU(cuMemFree_v2(p[i]));}}

static pthread_key_t the_key;static void free_at_end(void*v){CU(cuCtxSetCurrent(the_context));CU(cuMemFree_v2((CUdeviceptr)(uintptr_t)v));}
static void*keeper(void*u){pthread_setspecific(the_key,u);return 0;}
static void pairs1(const char*w){double s=now();for(int i=0;i<200000;i++){CUdeviceptr p=take(1<<20);CU(cuMemFree_v2(p));}printf("%s: %.0f ns a pair\n",w,(now()-s)*1e9/200000);}
static void key_end(void){furnish();pthread_key_create(&the_key,free_at_end);pairs1("before");pairs1("before");for(int i=0;i<1000;i++){pthread_t t;pthread_create(&t,0,keeper,(void*)(uintptr_t)take(1<<20));pthread_join(t,0);}pairs1("after");pairs1("after");}

static void*once(void*u){CU(cuCtxSetCurrent(the_context));CUdeviceptr p=take(1<<20);CU(cuMemFree_v2(p));pthread_barrier_wait(&bar);pthread_barrier_wait(&bar);return 0;}
static void pairs2(const char*w){static size_t z[]={4<<10,64<<10,256<<10,1<<20,(size_t)5<<20,(size_t)20<<20};printf("%s:",w);for(int k=0;k<(getenv("K")?atoi(getenv("K")):6);k++){double best=1e9;mark();for(int r=0;r<3;r++){double s=now();for(int i=0;i<20000;i++){CUdeviceptr p=take(z[k]);CU(cuMemFree_v2(p));}if(now()-s<best)best=now()-s;}printf(" %zuK %.0f (%.0f)",z[k]>>10,best*1e9/20000,(simcuda_calls(names[4])-base[4])/60.);}puts(" ns");}
static void idlers(void){furnish();pairs2("alone");for(int n=4;n<=256;n*=4){pthread_t t[256];pthread_barrier_init(&bar,0,n+1);for(int i=0;i<n;i++)pthread_create(t+i,0,once,0);pthread_barrier_wait(&bar);char b[40];sprintf(b,"%d idle",n);pairs2(b);pthread_barrier_wait(&bar);for(int i=0;i<n;i++)pthread_join(t[i],0);}pairs2("alone again");}

/* a leftover in an idle thread's cache under the cap per bucket; and blocks_per_bucket small */
static void cap(void){furnish();pthread_t t[16];pthread_barrier_init(&bar,0,17);for(int i=0;i<16;i++)pthread_create(t+i,0,stasher,(void*)(intptr_t)i);pthread_barrier_wait(&bar);if(has_pool()){struct cudapool_bytes b=pool_bytes();printf("live %llu cached %llu pending %llu KiB\n",b.live>>10,b.cached>>10,b.pending>>10);}
 sleep(3);for(int i=0;i<200;i++){CUdeviceptr p=take(1<<20);CU(cuMemFree_v2(p));}CU(cuCtxSynchronize());for(int i=0;i<200;i++){CUdeviceptr p=take(1<<20);CU(cuMemFree_v2(p));}
 if(has_pool()){struct cudapool_bytes b=pool_bytes();printf("after 3 s: live %llu cached %llu pending %llu KiB\n",b.live>>10,b.cached>>10,b.pending>>10);}pthread_barrier_wait(&bar);for(int i=0;i<16;i++)pthread_join(t[i],0);}
/* hot threads and cuMemGetInfo: never less than what is not live */
static void*hot(void*u){CU(cuCtxSetCurrent(the_context));while(!stop){CUdeviceptr p[20];for(int i=0;i<20;i++)p[i]=take(2<<20);for(int i=0;i<20;i++)CU(cuMemFree_v2(p[i]));}return 0;}
static void info_race(void){furnish();size_t f,tt,least=~0ul,most=0;pthread_t t[2];CU(cuMemGetInfo_v2(&f,&tt));printf("at first %zu MiB\n",f>>20);for(int i=0;i<2;i++)pthread_create(t+i,0,hot,0);usleep(200000);for(int i=0;i<100000;i++){CU(cuMemGetInfo_v2(&f,&tt));if(f<least)least=f;if(f>most)most=f;}stop=1;for(int i=0;i<2;i++)pthread_join(t[i],0);printf("least %zu most %zu MiB\n",least>>20,most>>20);}

static volatile int turn;static int pp_blocks;static size_t pp_size;
static void*pingpong(void*u){int me=(int)(intptr_t)u;CU(cuCtxSetCurrent(the_context));for(int r=0;r<200;r++){while(turn!=me)sched_yield();CUdeviceptr p[64];for(int i=0;i<pp_blocks;i++)p[i]=take(pp_size);for(int i=0;i<pp_blocks;i++)CU(cuMemFree_v2(p[i]));__sync_synchronize();turn=!me;}return 0;}
static void full(void){furnish();size_t f,tt;CU(cuMemGetInfo_v2(&f,&tt));for(int k=0;k<3;k++){pp_size=k==0?256<<10:k==1?1<<20:4<<20;pp_blocks=k==2?5:20;CUdeviceptr big=take(f-(pp_blocks*pp_size+(6<<20)));turn=0;pthread_t t[2];mark();double s=now();for(int i=0;i<2;i++)pthread_create(t+i,0,pingpong,(void*)(intptr_t)i);for(int i=0;i<2;i++)pthread_join(t[i],0);char b[60];sprintf(b,"full, %d x %zuK",pp_blocks,pp_size>>10);show(b,400.*pp_blocks,now()-s);CU(cuMemFree_v2(big));CU(cuCtxSynchronize());if(cudapool_trim)cudapool_trim();}}

#include <sys/resource.h>
static void burn(void){furnish();int th=8;ms_most=(size_t)12<<20;ov_n=20;ov_us=20000;mark();double s=now();pthread_t t[16];for(int i=0;i<th;i++)pthread_create(t+i,0,overlapper,0);for(int i=0;i<th;i++)pthread_join(t[i],0);show("burn",th*(double)ov_n,now()-s);struct rusage r;getrusage(RUSAGE_SELF,&r);printf("cpu %.2f s of %.2f s\n",r.ru_utime.tv_sec+r.ru_stime.tv_sec+(r.ru_utime.tv_usec+r.ru_stime.tv_usec)*1e-6,now()-s);}

/* busy threads beside short ones that come and go */
static _Atomic unsigned long done_pairs;
static void*busy(void*u){CU(cuCtxSetCurrent(the_context));unsigned long n=0;for(int i=0;!stop;i++){CUdeviceptr p=take(size_of(i)),q=take(size_of(i+3));CU(cuMemFree_v2(p));CU(cuMemFree_v2(q));n+=2;}done_pairs+=n;return 0;}
static void churn(void){furnish();pc_mixed=1;for(int b=1;b<=4;b*=2)for(int c=0;c<2;c++){stop=0;done_pairs=0;pthread_t t[8];mark();double s=now();for(int i=0;i<b;i++)pthread_create(t+i,0,busy,0);int shorts=0;while(now()-s<1){if(c){short_pairs=1;pthread_t k;pthread_create(&k,0,short_thread,0);pthread_join(k,0);shorts++;}usleep(1000);}stop=1;for(int i=0;i<b;i++)pthread_join(t[i],0);char w[70];sprintf(w,"busy %d, short %d",b,shorts);show(w,done_pairs,(now()-s));}}

static void full_limit(void){furnish();pp_size=1<<20;pp_blocks=20;turn=0;pthread_t t[2];mark();double s=now();for(int i=0;i<2;i++)pthread_create(t+i,0,pingpong,(void*)(intptr_t)i);for(int i=0;i<2;i++)pthread_join(t[i],0);show("at the limit",400.*pp_blocks,now()-s);}

static void idle4(void){furnish();int n=4;pthread_t t[4];pthread_barrier_init(&bar,0,n+1);for(int i=0;i<n;i++)pthread_create(t+i,0,once,0);pthread_barrier_wait(&bar);pairs2("warm");for(int r=0;r<50;r++)pairs2("4 idle");pthread_barrier_wait(&bar);for(int i=0;i<n;i++)pthread_join(t[i],0);}

static void starved(void){furnish();pairs2("alone");pthread_t t[4];pthread_barrier_init(&bar,0,5);for(int i=0;i<4;i++)pthread_create(t+i,0,once,0);pthread_barrier_wait(&bar);setenv("K","3",1);for(int r=0;r<6;r++)pairs2("4 idle, small sizes");setenv("K","6",1);pairs2("all sizes");setenv("K","3",1);for(int r=0;r<3;r++)pairs2("small sizes again");pthread_barrier_wait(&bar);for(int i=0;i<4;i++)pthread_join(t[i],0);}

static void hotsize(const char*w){size_t hs=(size_t)atoi(getenv("HS"))<<10;double best=1e9;for(int r=0;r<10;r++){double s=now();for(int i=0;i<20000;i++){CUdeviceptr p=take(hs);CU(cuMemFree_v2(p));}if(now()-s<best)best=now()-s;}printf("%s: 512K %.0f ns\n",w,best*1e9/20000);}
static void firstcome(void){furnish();pthread_t t[12];pthread_barrier_init(&bar,0,13);for(int i=0;i<12;i++)pthread_create(t+i,0,once,0);pthread_barrier_wait(&bar);if(getenv("FIRST"))for(int i=0;i<8;i++)for(int r=0;r<3;r++){CUdeviceptr p=take((3-i/4)*(300<<10)+i*100000);CU(cuMemFree_v2(p));}hotsize("hot");hotsize("hot");pthread_barrier_wait(&bar);for(int i=0;i<12;i++)pthread_join(t[i],0);}
#undef MORE
#define MORE {"idle",idle},{"fine",fine},{"cancel",cancel},{"many_sizes",many_sizes},{"sizes1",sizes1},{"firstcome",firstcome},{"starved",starved},{"idle4",idle4},{"full_limit",full_limit},{"churn",churn},{"burn",burn},{"full",full},{"cap",cap},{"info_race",info_race},{"idlers",idlers},{"key_end",key_end},{"overlap",overlap},{"live",live},{"oom_record",oom_record},{"limit",limit},{"info",info},{"cancel2",cancel2},{"oom",oom},{"contexts",contexts},{"phases",phases},{"rawfork",rawfork},
