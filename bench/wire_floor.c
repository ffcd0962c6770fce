/* The floor of bench.wire_peers: what an answer costs from C by epoll, where nothing is decided.
 *
 *   wire_floor PORT http|grpc
 *
 * Requests are only told apart, and each is answered with bytes that were made beforehand. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 1 << 17, PREFACE = 24 };

typedef struct {
    int file, greeted;
    size_t held;
    uint8_t buffer[BUFFER];
} Connection;

static int grpc;
static uint8_t out[4 * BUFFER], *to;

static void put(const void *bytes, size_t size) {
    memcpy(to, bytes, size);
    to += size;
}

static void put_frame(const void *payload, int size, int kind, int flags, const uint8_t *stream) {
    uint8_t head[9] = {0, size >> 8, size, kind, flags, stream[0], stream[1], stream[2], stream[3]};
    put(head, 9);
    put(payload, size);
}

static size_t take_http(uint8_t *bytes, size_t size) {
    static const char answer[] =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 79\r\n\r\n"
        "{\"allowed\":true,\"remaining\":9,\"limit\":10,\"reset_at\":1767268800000,\"retry\":null}";
    uint8_t *body = memmem(bytes, size, "\r\n\r\n", 4);
    if (!body) return 0;
    *body = 0;
    char *length = strcasestr((char *)bytes, "content-length:");
    *body = '\r';
    size_t whole = body + 4 - bytes + (length ? strtoul(length + 15, NULL, 10) : 0);
    if (whole > size) return 0;
    put(answer, sizeof answer - 1);
    return whole;
}

static size_t take_frame(uint8_t *bytes, size_t size) {
    if (size < 9) return 0;
    size_t length = bytes[0] << 16 | bytes[1] << 8 | bytes[2];
    if (size < 9 + length) return 0;
    int kind = bytes[3], flags = bytes[4];
    const uint8_t *stream = bytes + 5;
    if (kind == 0 && flags & 1) {
        /* :status 200, a message, and grpc-status 0. */
        put_frame("\x88", 1, 1, 4, stream);
        put_frame("\0\0\0\0\x10\x0a\x0e\x08\1mmmmmmmmmmmm", 21, 0, 0, stream);
        put_frame("\0\x0bgrpc-status\1" "0", 15, 1, 5, stream);
        uint8_t grown[4] = {0, 0, length >> 8, length};
        put_frame(grown, 4, 8, 0, (uint8_t *)"\0\0\0\0");
    } else if (kind == 4 && !(flags & 1)) {
        put_frame("", 0, 4, 1, (uint8_t *)"\0\0\0\0");
    }
    return 9 + length;
}

static int serve(Connection *c) {
    ssize_t got = recv(c->file, c->buffer + c->held, BUFFER - c->held, 0);
    if (got <= 0) return 0;
    size_t size = c->held + got, taken = 0, more;
    to = out;
    if (grpc && !c->greeted && size >= PREFACE) {
        c->greeted = 1, taken = PREFACE;
        put_frame("", 0, 4, 0, (uint8_t *)"\0\0\0\0");
    }
    while ((more = (grpc ? take_frame : take_http)(c->buffer + taken, size - taken))) taken += more;
    memmove(c->buffer, c->buffer + taken, c->held = size - taken);
    return to == out || send(c->file, out, to - out, MSG_NOSIGNAL) == to - out;
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "wire_floor PORT http|grpc\n"), 2;
    grpc = !strcmp(argv[2], "grpc");
    struct sockaddr_in at = {AF_INET, htons(atoi(argv[1])), {htonl(INADDR_LOOPBACK)}, {0}};
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1024)) return perror("bind"), 1;
    struct epoll_event event = {EPOLLIN, {.ptr = NULL}}, events[256];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(poll, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                c = calloc(1, sizeof *c);
                c->file = accept(listener, NULL, NULL);
                setsockopt(c->file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                event.data.ptr = c;
                epoll_ctl(poll, EPOLL_CTL_ADD, c->file, &event);
            } else if (!serve(c)) {
                close(c->file);
                free(c);
            }
        }
    }
}
