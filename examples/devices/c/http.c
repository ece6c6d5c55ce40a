/* Reports over HTTP, with libcurl. There is one request at a time: a newer report ends the older request. */
#include "device.h"
#include <curl/curl.h>

#define SET(name, value) check(curl_easy_setopt(easy, name, value) == CURLE_OK, #name " is refused")
static CURLM *multi;
static CURL *easy;
static bool is_busy;
static char answer[MAX_REPLY];
static size_t answered;

static size_t receive(char *data, size_t one, size_t size, void *unused)
{
    (void)unused;
    if (one * size > sizeof answer - answered)
        return 0; /* too large: curl ends the request */
    memcpy(answer + answered, data, one * size);
    answered += one * size;
    return one * size;
}

static void set_up(void)
{
    char url[512];
    int length = snprintf(url, sizeof url, "%s/v1/devices/%s/report", options.server, options.device);
    check(length < (int)sizeof url, "--server is too long");
    check(curl_global_init(CURL_GLOBAL_DEFAULT) == 0 && (multi = curl_multi_init()) && (easy = curl_easy_init()), "no curl");
    SET(CURLOPT_URL, url); /* curl follows no redirects unless it is told to */
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    SET(CURLOPT_WRITEFUNCTION, receive);
    SET(CURLOPT_FORBID_REUSE, 1L); /* else curl may repeat a report by itself, when an old connection is broken */
    if (options.ca_file != NULL)
        SET(CURLOPT_CAINFO, options.ca_file);
}

void transport_send(const char *report, size_t length)
{
    if (easy == NULL)
        set_up();
    if (is_busy)
        curl_multi_remove_handle(multi, easy);
    answered = 0, is_busy = true;
    SET(CURLOPT_XOAUTH2_BEARER, read_token());
    SET(CURLOPT_POSTFIELDSIZE, (long)length);
    SET(CURLOPT_COPYPOSTFIELDS, report);
    check(curl_multi_add_handle(multi, easy) == CURLM_OK, "curl refuses the request");
}

void transport_wait(int milliseconds, int wake)
{
    struct curl_waitfd extra = {.fd = wake, .events = CURL_WAIT_POLLIN};
    int running;
    check(curl_multi_perform(multi, &running) == CURLM_OK, "curl fails");
    CURLMsg *message = curl_multi_info_read(multi, &running);
    if (message == NULL) {
        check(curl_multi_poll(multi, &extra, 1, milliseconds, NULL) == CURLM_OK, "curl fails");
        return;
    }
    long status = 0;
    curl_off_t after = 0;
    bool is_answer = message->data.result == CURLE_OK &&
                     curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK &&
                     curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &after) == CURLE_OK;
    curl_multi_remove_handle(multi, easy);
    is_busy = false;
    if (is_answer)
        on_answer(status, answer, answered, after > 0 ? (int64_t)after * 1000 : -1);
    else
        on_failure(false);
}
