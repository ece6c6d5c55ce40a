/* The work of the device. This is the task of the tests: a connection to a TCP server. */
#include "device.h"
#include <netdb.h>
#include <poll.h>
#include <sys/time.h>

static int dial(const char *system) /* returns a socket, or -1 */
{
    char host[128], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    struct timeval limit = {.tv_sec = 1}; /* of connect, which does not look at stopped */
    if (sscanf(system, "%127[^:]:%7[0-9]", host, port) != 2 || getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    int file = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_open = file >= 0 && setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
                   connect(file, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    return is_open || file < 0 ? file : (close(file), -1);
}

/* Fill in. Call stopped at least once a second; if it returns true, leave the external system and return. holder is
   "DEVICE TASK TOKEN", for an external system that refuses older tokens. */
void task(const cJSON *payload, const char *holder, bool (*stopped)(void), struct outcome *outcome)
{
    const char *system = cJSON_GetStringValue(cJSON_GetObjectItem(payload, "system"));
    const char *fail = cJSON_GetStringValue(cJSON_GetObjectItem(payload, "fail"));
    const cJSON *seconds = cJSON_GetObjectItem(payload, "seconds"), *size = cJSON_GetObjectItem(payload, "output_bytes");
    int bytes = cJSON_IsNumber(size) ? size->valueint : 0;
    struct pollfd connection = {.fd = system != NULL ? dial(system) : -1, .events = POLLIN};
    bool is_broken = system != NULL && (connection.fd < 0 || dprintf(connection.fd, "%s\n", holder) < 0);
    int64_t end = now() + (cJSON_IsNumber(seconds) ? (int64_t)(seconds->valuedouble * 1000) : 0);
    for (int64_t left; !is_broken && !stopped() && (left = end - now()) > 0;)
        is_broken = poll(&connection, 1, left < 50 ? (int)left : 50) > 0;
    if (connection.fd >= 0)
        close(connection.fd); /* the device has left; nothing is reported before */
    const char *error = is_broken ? "no connection, or it was closed" : stopped() ? "stopped" : fail ? fail : "";
    outcome->status = *error ? "failed" : "succeeded";
    if (bytes > MAX_OUTPUT - 16)
        error = "the output was too large";
    else if (bytes > 0)
        memset(outcome->output + sprintf(outcome->output, "{\"data\":\"%*s\"}", bytes, "") - bytes - 2, 'x', (size_t)bytes);
    snprintf(outcome->error, sizeof outcome->error, "%s", error);
}
