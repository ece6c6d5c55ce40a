/* The parts of a device: device.c keeps the rules, http.c or mqtt.c carries the reports, task.c does the work. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_OUTPUT = 32768, MAX_ERROR = 512, MAX_REPLY = 131072 }; /* bytes */
extern struct options { const char *server, *device, *token_file, *ca_file, *journal; } options; /* ca_file: or NULL */
const char *read_token(void);                /* the file is read each time, so an operator can replace the token */
int64_t now(void);                           /* milliseconds of a clock that does not jump, and that runs during sleep */
void check(bool is_ok, const char *problem); /* ends the program unless is_ok */

/* task.c. status: succeeded, failed, rejected or returned; output: JSON, or empty. */
struct outcome { const char *status; char error[MAX_ERROR], output[MAX_OUTPUT]; };
void task(const cJSON *payload, const char *holder, bool (*stopped)(void), struct outcome *outcome);

/* journal.c keeps texts over a restart: 0 is the boot number, 1 and more are results. */
int journal_load(int number, char *text, size_t size); /* returns the length; 0: there is none; -1: error */
bool journal_save(int number, const char *text);       /* true: it survives a power cut */
bool journal_erase(int number);

/* http.c and mqtt.c. They call the functions on_... of device.c. */
void transport_send(const char *report, size_t length); /* without a connection it connects, and calls on_ready then */
void transport_wait(int milliseconds, int wake);        /* also returns when the file wake is readable */
void on_ready(void);
void on_failure(bool is_forbidden); /* there is no connection, it broke, or the token was refused */
void on_answer(long status, const char *body, size_t length, int64_t retry_after_ms); /* -1: no Retry-After */
