/* A device of the dispatcher. The rules are those of docs/protocol.md ("A device in 40 lines"). */
#include "device.h"
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define GRANT "\"task\":%" PRId64 ",\"token\":%" PRId64 /* for printf and scanf */
enum { MAX_SENT = 8, MAX_RESULTS = 4, MAX_RESULT = MAX_OUTPUT + MAX_ERROR + 160, MAX_REPORT = 61440, DAY = 86400000 };
struct options options;
static int boot, counter, failures, refusals, wake[2];
static int64_t sent[MAX_SENT], top, told, due, hold, period = 30000; /* hold: nothing is sent before it */
static bool is_answered = true, one_by_one; /* is_answered: the last report; one_by_one: a report has one result */
static struct result { /* in the journal, until it has an outcome */
    int64_t task, token; /* 0: there is none */
    char text[MAX_RESULT];
} results[MAX_RESULTS], *alone; /* alone: the only result of the last report, or NULL */
static struct { /* the running task */
    struct result *result; /* NULL: no task is running */
    int64_t lease, renew_at;
    _Atomic int64_t end;
    atomic_bool is_cancelled, is_done;
    char why[32], holder[256];
    struct outcome outcome;
    cJSON *payload;
    pthread_t thread;
} work;

void check(bool is_ok, const char *problem)
{
    if (is_ok)
        return;
    fprintf(stderr, "%s\n", problem);
    _exit(1);
}

int64_t now(void)
{
    struct timespec t;
    check(clock_gettime(CLOCK_BOOTTIME, &t) == 0, "there is no clock");
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t below(int64_t limit) { return limit > 0 ? random() % limit : 0; }
static bool is(const char *text, const char *other) { return strcmp(text, other) == 0; }
static bool stopped(void) /* a little before the lease ends, so that the task has left then */
{
    return atomic_load(&work.is_cancelled) || now() >= atomic_load(&work.end) - least(1000, work.lease / 10);
}

/* Returns the result of a grant, or NULL; find(0, 0) returns a free place. A grant is named by task and token together. */
static struct result *find(int64_t task, int64_t token)
{
    struct result *r = results;
    while (r < results + MAX_RESULTS && (r->task != task || r->token != token))
        r++;
    return r < results + MAX_RESULTS ? r : NULL;
}

static void save(struct result *r) /* an empty text erases it */
{
    int n = (int)(r - results) + 1;
    check(*r->text ? journal_save(n, r->text) : journal_erase(n), "the journal cannot be written");
    if (*r->text == '\0')
        r->task = r->token = 0, alone = r == alone ? NULL : alone;
}

static void load(void)
{
    char text[16] = "";
    check(journal_load(0, text, sizeof text) >= 0, "the journal cannot be read");
    boot = atoi(text) + 1; /* report ids begin with it, so they are unique over restarts */
    snprintf(text, sizeof text, "%d", boot);
    check(journal_save(0, text), "the journal cannot be written");
    for (int i = 0; i < MAX_RESULTS; i++)
        if (journal_load(i + 1, results[i].text, MAX_RESULT) != 0) {
            check(sscanf(results[i].text, "{" GRANT, &results[i].task, &results[i].token) == 2, "the journal is damaged");
            top = results[i].token > top ? results[i].token : top;
        }
}

static void keep(struct result *r, struct outcome *o)
{
    for (char *c = o->error; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' || *c == '"' || *c == '\\' ? ' ' : *c; /* so that it needs no escapes */
    int n = snprintf(r->text, MAX_RESULT, "{" GRANT ",\"status\":\"%s\",\"error\":\"%s\"%s%s}", r->task, r->token, o->status,
                     o->error, *o->output ? ",\"output\":" : "", o->output);
    check(n < MAX_RESULT, "the result is too large");
    save(r);
}

/* The device renews the lease after half of the remaining time, unless that half is too short. */
static void extend(int64_t end)
{
    if (end > atomic_load(&work.end))
        atomic_store(&work.end, end);
    int64_t half = (atomic_load(&work.end) - now()) / 2;
    work.renew_at = half >= least(1000, work.lease / 4) ? now() + half : INT64_MAX;
}

static void report(void)
{
    static char text[MAX_REPORT];
    int count = 0, n = snprintf(text, sizeof text, "{\"id\":\"%d-%d\",\"accept\":%s,\"results\":[", boot, ++counter,
                                find(0, 0) ? "true" : "false"); /* without room for a result, it accepts no task */
    for (struct result *r = results; r < results + MAX_RESULTS && (count == 0 || !one_by_one); r++)
        if (r->token != 0 && r != work.result && n + strlen(r->text) + 100 < sizeof text) {
            n += sprintf(text + n, "%s%s", count++ > 0 ? "," : "", r->text);
            alone = r;
        }
    alone = count == 1 ? alone : NULL;
    one_by_one = one_by_one && count > 0;
    n += sprintf(text + n, "]");
    if (work.result != NULL) {
        extend(0); /* this report renews the lease */
        n += sprintf(text + n, ",\"running\":[{" GRANT "}]", work.result->task, work.result->token);
    }
    n += sprintf(text + n, "}");
    sent[counter % MAX_SENT] = now(); /* the lease counts from here, not from the reply */
    due = now() + 10000 + below(20000); /* again, if nothing arrives */
    is_answered = false;
    transport_send(text, (size_t)n);
}

void on_ready(void) { due = now(); }

/* Consecutive waits get longer. The first takes 10 minutes after a refusal of the token, else it is a random pause. */
void on_failure(bool is_forbidden)
{
    int64_t pause = least(1000LL << least(failures, 20), period), refusal = 600000LL << least(refusals, 6);
    int64_t end = now() + (is_forbidden ? least(refusal, DAY / 4) : below(pause));
    due = hold = end > hold ? end : hold;
    is_forbidden ? refusals++ : failures++;
}

/* The same bytes are never sent again: the results go one by one, and a result that was refused alone goes without its
   output. If it is refused again, it is dropped. */
static void refuse(void)
{
    one_by_one = true;
    if (alone == NULL)
        return;
    char *output = strstr(alone->text, ",\"output\":"); /* it is the last member, and occurs once */
    strcpy(output ? output : alone->text, output ? "}" : "");
    save(alone);
}

/* Sets the time of the next report. after: in milliseconds; -1: the answer did not say it. */
static void plan(long status, const char *reason, int64_t after)
{
    bool is_refused = status == 400 || status == 413 || status == 422 || is(reason, "invalid") || is(reason, "too_large");
    bool is_error = is_refused || status != 200 || is(reason, "busy_server") || is(reason, "unavailable");
    bool is_forbidden = status == 401 || status == 403 || status == 429 || is(reason, "forbidden");
    is_answered = true;
    refusals = is_forbidden ? refusals : 0;
    failures = after < 0 ? failures : 0;
    if (is_refused)
        refuse();
    if (is_forbidden || (is_error && after < 0)) {
        on_failure(is_forbidden);
        return;
    }
    due = now() + (after < 0 ? period : least(after, DAY));
    hold = is_error ? due : hold; /* an error also delays results and renewals */
}

static int64_t number(const cJSON *object, const char *name, int64_t otherwise)
{
    const cJSON *n = cJSON_GetObjectItem(object, name);
    return cJSON_IsNumber(n) && n->valuedouble >= 0 && n->valuedouble < 9e15 ? (int64_t)n->valuedouble : otherwise;
}

static const char *text(const cJSON *object, const char *name)
{
    const char *found = cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
    return found != NULL ? found : "";
}

static struct result *find_named(const cJSON *entry, const char *task)
{
    return number(entry, "token", 0) > 0 ? find(number(entry, task, 0), number(entry, "token", 0)) : NULL;
}

static void *run(void *unused)
{
    task(work.payload, work.holder, stopped, &work.outcome);
    atomic_store(&work.is_done, true);
    check(write(wake[1], "", 1) == 1, "the pipe is broken");
    return unused;
}

static void start(struct result *r, cJSON *grant, int64_t end)
{
    cJSON_Delete(work.payload);
    memset(&work, 0, sizeof work);
    r->task = number(grant, "id", 0), r->token = top = number(grant, "token", 0);
    work.outcome = (struct outcome){"failed", "the device restarted", ""}; /* the result, unless the task ends */
    keep(r, &work.outcome);
    work.result = r, work.lease = number(grant, "lease_ms", 0), work.payload = cJSON_DetachItemFromObject(grant, "payload");
    snprintf(work.holder, sizeof work.holder, "%s %" PRId64 " %" PRId64, options.device, r->task, r->token);
    *work.outcome.error = '\0';
    extend(end);
    check(pthread_create(&work.thread, NULL, run, NULL) == 0, "there is no memory for a thread");
}

static void finish(void)
{
    char byte;
    check(pthread_join(work.thread, NULL) == 0 && read(wake[0], &byte, 1) == 1, "the thread is lost");
    if (!is(work.outcome.status, "succeeded") && stopped()) {
        work.outcome.status = "failed";
        snprintf(work.outcome.error, MAX_ERROR, "%s", *work.why ? work.why : "lease ended");
    }
    keep(work.result, &work.outcome); /* on the disk before it is reported */
    work.result = NULL, due = now();
}

/* Does what the reply says. Leases count from begin; 0: the reply answers no report of this boot. */
static void obey(const cJSON *reply, int64_t begin)
{
    const cJSON *entry;
    cJSON *grant = cJSON_GetObjectItem(reply, "task");
    int64_t token = number(grant, "token", 0), end = begin + number(grant, "lease_ms", 0);
    struct result *r;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(reply, "acks"))
        if ((r = find_named(entry, "task")) != NULL && r != work.result) {
            *r->text = '\0'; /* every outcome is final, also an unknown one */
            save(r);
        }
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(reply, "renewed"))
        if ((r = find_named(entry, "task")) != NULL && r == work.result && begin > 0)
            extend(begin + number(entry, "lease_ms", 0));
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(reply, "cancel"))
        if ((r = find_named(entry, "task")) != NULL && r == work.result) {
            snprintf(work.why, sizeof work.why, "%s", *text(entry, "why") ? text(entry, "why") : "cancelled");
            atomic_store(&work.is_cancelled, true);
        }
    if (!is(text(reply, "reason"), "granted") || begin == 0 || token == 0)
        return;
    if ((r = find_named(grant, "id")) != NULL && r == work.result)
        extend(end);
    else if (r != NULL) { /* finished: the result goes again, at once only the first time */
        due = told == token ? due : now();
        told = token;
    } else if (work.result == NULL && now() < end && token > top && find(0, 0)) /* never an older token or the same one */
        start(find(0, 0), grant, end);
}

void on_answer(long status, const char *body, size_t length, int64_t retry_after)
{
    cJSON *reply = cJSON_ParseWithLength(body, length);
    const char *re = text(reply, "re"), *reason = text(reply, "reason");
    int of_boot, n;
    bool is_known = sscanf(re, "%9d-%9d", &of_boot, &n) == 2 && of_boot == boot && n > 0 && n <= counter &&
                    n > counter - MAX_SENT; /* else it answers a report of an earlier boot, or a very old one */
    if (is(reason, "wake") && *re == '\0')
        due = now();
    else if (!is_answered && (*re == '\0' || (is_known && n == counter))) /* else it is late, or repeated */
        plan(reply != NULL ? status : 0, reason, number(reply, "report_after_ms", retry_after));
    if (status == 200)
        obey(reply, is_known ? sent[n % MAX_SENT] + number(reply, "held_ms", 0) : 0);
    cJSON_Delete(reply);
}

const char *read_token(void)
{
    static char token[512];
    FILE *file = fopen(options.token_file, "r");
    check(file != NULL && fgets(token, sizeof token, file) != NULL, "--token-file cannot be read");
    fclose(file);
    token[strcspn(token, "\r\n")] = '\0';
    return token;
}

int main(int argc, char **argv)
{
    const char *seconds = "30", **values[] = {&options.server, &options.device, &options.token_file, &options.ca_file,
                                              &options.journal, &seconds};
    static const struct option names[] = {{"server", 1, 0, 0}, {"device", 1, 0, 0}, {"token-file", 1, 0, 0},
        {"ca-file", 1, 0, 0}, {"journal", 1, 0, 0}, {"period", 1, 0, 0}, {"help", 0, 0, 'h'}, {0}};
    int c, i;
    while ((c = getopt_long(argc, argv, "", names, &i)) == 0)
        *values[i] = optarg;
    check(c == -1 && options.server && options.device && options.token_file && options.journal && atof(seconds) > 0,
          "usage: --server URL --device ID --token-file FILE --journal FILE [--ca-file FILE] [--period SECONDS]");
    period = (int64_t)(atof(seconds) * 1000);
    srandom((unsigned)(now() ^ getpid()));
    check(signal(SIGPIPE, SIG_IGN) != SIG_ERR && pipe(wake) == 0, "there is no pipe");
    load();
    for (due = hold = now();;) {
        if (work.result != NULL && atomic_load(&work.is_done))
            finish();
        check(work.result == NULL || now() < atomic_load(&work.end) + 1000, "the task goes on after its lease");
        int64_t next = work.result != NULL ? least(due, work.renew_at) : due;
        next = next > hold ? next : hold;
        if (now() >= next)
            report();
        else
            transport_wait((int)least(next - now() + 1, 1000), wake[0]);
    }
}
