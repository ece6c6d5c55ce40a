/* Reports over MQTT, with libmosquitto. Each connection has a new client: an old one would send old reports again. */
#include "device.h"
#include <mosquitto.h>
#include <poll.h>

static struct mosquitto *client;
static enum { DOWN, CONNECTING, UP, FORBIDDEN } state;
static int unanswered;  /* libmosquitto keeps each report until its PUBACK, so their number has a limit */
static int64_t give_up; /* when a connection that is not UP is given up */
static char reports[160], replies[160];

static void on_connect(struct mosquitto *m, void *unused, int code)
{
    (void)unused;
    if (code != 0 || mosquitto_subscribe(m, NULL, replies, 1) != MOSQ_ERR_SUCCESS)
        state = code == 4 || code == 5 ? FORBIDDEN : DOWN; /* 4 and 5: the token is wrong, or has no rights */
}

static void on_subscribe(struct mosquitto *m, void *unused, int id, int count, const int *granted)
{
    (void)m, (void)unused, (void)id, (void)count, (void)granted;
    state = UP; /* the reply to a report cannot be missed now */
    on_ready();
}

static void on_message(struct mosquitto *m, void *unused, const struct mosquitto_message *message)
{
    (void)m, (void)unused;
    unanswered = 0;
    if (message->payloadlen > 0 && message->payloadlen <= MAX_REPLY)
        on_answer(200, message->payload, (size_t)message->payloadlen, -1);
}

static void end_connection(bool is_forbidden)
{
    mosquitto_destroy(client);
    client = NULL, state = DOWN, unanswered = 0;
    on_failure(is_forbidden);
}

static void begin_connection(void)
{
    char scheme[8], host[256];
    int port;
    check(sscanf(options.server, "%7[a-z]://%255[^:/]:%d", scheme, host, &port) == 3, "--server is not mqtt(s)://host:port");
    check(mosquitto_lib_init() == MOSQ_ERR_SUCCESS, "there is no memory"); /* it may be called again */
    mosquitto_destroy(client);
    snprintf(reports, sizeof reports, "fleet/v1/%s/report", options.device);
    snprintf(replies, sizeof replies, "fleet/v1/%s/reply", options.device);
    check((client = mosquitto_new(options.device, true, NULL)) != NULL, "there is no memory");
    check(mosquitto_username_pw_set(client, options.device, read_token()) == MOSQ_ERR_SUCCESS, "there is no memory");
    if (strcmp(scheme, "mqtts") == 0)
        check(mosquitto_tls_set(client, options.ca_file, options.ca_file ? NULL : "/etc/ssl/certs", NULL, NULL, NULL) ==
              MOSQ_ERR_SUCCESS, "--ca-file cannot be read");
    mosquitto_connect_callback_set(client, on_connect);
    mosquitto_subscribe_callback_set(client, on_subscribe);
    mosquitto_message_callback_set(client, on_message);
    state = CONNECTING, give_up = now() + 10000;
    if (mosquitto_connect_async(client, host, port, 30) != MOSQ_ERR_SUCCESS)
        end_connection(false);
}

void transport_send(const char *report, size_t length)
{
    if (state != UP && (client == NULL || now() >= give_up))
        begin_connection();
    else if (state == UP && (++unanswered > 8 ||
                             mosquitto_publish(client, NULL, reports, (int)length, report, 1, false) != MOSQ_ERR_SUCCESS))
        end_connection(false);
}

void transport_wait(int milliseconds, int wake)
{
    struct pollfd files[] = {{.fd = wake, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    files[1].fd = client != NULL ? mosquitto_socket(client) : -1;
    if (client != NULL && mosquitto_want_write(client))
        files[1].events |= POLLOUT;
    if (poll(files, 2, milliseconds) < 0 || client == NULL)
        return;
    bool is_broken = (files[1].revents & POLLOUT && mosquitto_loop_write(client, 1) != MOSQ_ERR_SUCCESS) ||
                     (files[1].revents & ~POLLOUT && mosquitto_loop_read(client, 1) != MOSQ_ERR_SUCCESS) ||
                     mosquitto_loop_misc(client) != MOSQ_ERR_SUCCESS;
    if (is_broken || state == DOWN || state == FORBIDDEN)
        end_connection(state == FORBIDDEN);
}
