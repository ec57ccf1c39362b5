/* Times of the CUDA driver's calls, by CUPTI's callbacks. See driver_calls.py, which compiles it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CALLS = 4000000, DRIVER_API = 1, ON_ENTRY = 0 };

/* The beginning of CUpti_CallbackData. */
typedef struct {
  int site;
  const char *name;
} Callback;

typedef struct {
  double start, end; /* seconds of CLOCK_MONOTONIC, which is Python's time.perf_counter */
  long thread;
  const char *name;
} Call;

typedef void (*Handler)(void *, int, uint32_t, const Callback *);
static int (*subscribe)(void **, Handler, void *);
static int (*enable_domain)(uint32_t, void *, int);
static int (*unsubscribe)(void *);

static Call *calls;
static long num_calls;
static void *subscriber;
static __thread double entered;
static __thread long thread;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

static void note(void *user, int domain, uint32_t id, const Callback *callback) {
  if (callback->site == ON_ENTRY) {
    entered = now();
    return;
  }
  if (!thread) thread = syscall(SYS_gettid);
  long i = __sync_fetch_and_add(&num_calls, 1);
  if (i < MOST_CALLS) calls[i] = (Call){entered, now(), thread, callback->name};
}

int open_cupti(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) return -1;
  subscribe = dlsym(library, "cuptiSubscribe");
  enable_domain = dlsym(library, "cuptiEnableDomain");
  unsubscribe = dlsym(library, "cuptiUnsubscribe");
  calls = malloc(sizeof(Call) * MOST_CALLS);
  return calls ? 0 : -1;
}

int start(void) {
  num_calls = 0;
  int status = subscribe(&subscriber, note, 0);
  return status ? status : enable_domain(1, subscriber, DRIVER_API);
}

int stop(void) { return unsubscribe(subscriber); }

long count(void) { return num_calls < MOST_CALLS ? num_calls : MOST_CALLS; }

void get(long i, double *start, double *end, long *of_thread, const char **name) {
  *start = calls[i].start, *end = calls[i].end, *of_thread = calls[i].thread, *name = calls[i].name;
}
