/* The load of bench.wire_peers: one thread, one epoll, the same bytes for every server.
 *
 *   wire_load PORT http|grpc CONNECTIONS STREAMS SECONDS RATE SPIN EXPECTED < pieces
 *
 * With a rate of 0 every connection keeps STREAMS requests in flight, which finds the peak. With
 * another one requests are due at fixed instants; whoever finds no free place is timed from then on.
 * With SPIN it never sleeps, so that a server does not pay for waking it.
 * Requests come ready-made from the program that starts this one, as three pieces with their length
 * in front: the header block of a connection's first call, that of all others (over HTTP/1.1: the
 * whole request), and the message. In each a run of eight '#' becomes the number of the request, and
 * a run of eight '@' that number modulo KEYS. Answers are read as far as it takes to tell them apart;
 * each has to hold EXPECTED. Prints JSON. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KEYS = 10000, PLACES = 8, RING = 4096, BUFFER = 1 << 18, WARM_NS = 100000000 };
enum { DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW };

typedef struct {
    uint8_t *bytes;
    size_t size;
    int places;
    struct { size_t at; int key; } place[PLACES];
} Piece;

typedef struct {
    int file;
    int free;              /* requests that may be sent */
    uint32_t stream;       /* the next one */
    int64_t window;        /* what the server lets us send */
    size_t held;           /* bytes of an answer that is not complete */
    int told;              /* whether the message of the answer held what was expected */
    uint8_t *buffer;
    uint64_t since[RING];  /* by stream */
} Connection;

static Piece first, next, message;
static Connection *connections;
static int grpc, count, streams, spin;
static double rate, seconds;
static const char *expected;
static size_t expected_size;
static uint64_t number, began, ends, answered, total, in_flight;
static uint32_t *latencies;
static size_t timed, room;

static void fail(const char *what, const void *bytes, size_t size) {
    fprintf(stderr, "wire_load: %s: ", what);
    for (size_t i = 0; i < size && i < 300; i++) {
        int c = ((const uint8_t *)bytes)[i];
        fprintf(stderr, c >= 32 && c < 127 ? "%c" : "\\x%02x", c);
    }
    fprintf(stderr, "\n");
    exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void read_piece(Piece *piece) {
    uint32_t size;
    if (fread(&size, 4, 1, stdin) != 1) fail("no pieces", "", 0);
    piece->bytes = malloc(size + 1);
    piece->size = size;
    if (fread(piece->bytes, 1, size, stdin) != size) fail("a piece is short", "", 0);
    for (size_t i = 0; i + 8 <= size; i++) {
        int key = !memcmp(piece->bytes + i, "@@@@@@@@", 8);
        if (!key && memcmp(piece->bytes + i, "########", 8)) continue;
        if (piece->places == PLACES) fail("too many places", "", 0);
        piece->place[piece->places].at = i;
        piece->place[piece->places++].key = key;
        i += 7;
    }
}

static uint8_t *put(uint8_t *to, const Piece *piece) {
    memcpy(to, piece->bytes, piece->size);
    for (int p = 0; p < piece->places; p++) {
        uint64_t value = piece->place[p].key ? number % KEYS : number;
        for (int digit = 7; digit >= 0; digit--, value /= 10)
            to[piece->place[p].at + digit] = '0' + value % 10;
    }
    return to + piece->size;
}

static uint8_t *put_frame(uint8_t *to, size_t size, int kind, int flags, uint32_t stream) {
    uint8_t head[9] = {size >> 16, size >> 8, size, kind, flags,
                       stream >> 24, stream >> 16, stream >> 8, stream};
    memcpy(to, head, 9);
    return to + 9;
}

static void send_all(Connection *c, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t sent = send(c->file, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) continue;
        if (sent <= 0) fail("cannot send", strerror(errno), strlen(strerror(errno)));
        bytes += sent, size -= sent;
    }
}

/* Up to `wanted` requests in one write; how many it were. */
static int ask(Connection *c, int wanted, uint64_t since) {
    static uint8_t out[1 << 17];
    uint8_t *to = out;
    int asked = 0;
    for (; asked < wanted && c->free; asked++) {
        if (!grpc) {
            c->since[0] = since;
            to = put(to, &next);
        } else {
            const Piece *head = c->stream == 1 ? &first : &next;
            if (c->window < (int64_t)message.size) break;
            to = put_frame(to, head->size, HEADERS, 4, c->stream);
            to = put(to, head);
            to = put_frame(to, message.size, DATA, 1, c->stream);
            to = put(to, &message);
            c->window -= message.size;
            c->since[c->stream / 2 % RING] = since;
            c->stream += 2;
        }
        c->free--, number++, in_flight++;
    }
    if (to > out) send_all(c, out, to - out);
    return asked;
}

static void ended(Connection *c, uint64_t since, uint64_t at) {
    c->free++, total++, in_flight--;
    if (at < began || at >= ends) return;
    answered++;
    if (timed < room) latencies[timed++] = at - since > UINT32_MAX ? UINT32_MAX : at - since;
}

static size_t take_http(Connection *c, uint8_t *bytes, size_t size, uint64_t at) {
    uint8_t *body = memmem(bytes, size, "\r\n\r\n", 4);
    if (!body) return 0;
    if (memcmp(bytes, "HTTP/1.1 200", 12)) fail("an answer that was not expected", bytes, size);
    *body = 0;
    char *length = strcasestr((char *)bytes, "content-length:");
    *body = '\r';
    body += 4;
    if (!length) fail("an answer without a length", bytes, size);
    size_t whole = body - bytes + strtoul(length + 15, NULL, 10);
    if (whole > size) return 0;
    if (!memmem(body, bytes + whole - body, expected, expected_size))
        fail("an answer that was not expected", bytes, whole);
    ended(c, c->since[0], at);
    return whole;
}

static uint32_t number_at(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

static void take_settings(Connection *c, uint8_t *payload, size_t size) {
    uint8_t out[9];
    for (size_t i = 0; i + 6 <= size; i += 6)
        if (payload[i + 1] == 3 && number_at(payload + i + 2) < (uint32_t)streams)
            fail("fewer streams are allowed than wanted", "", 0);
    put_frame(out, 0, SETTINGS, 1, 0);
    send_all(c, out, 9);
}

static size_t take_frame(Connection *c, uint8_t *bytes, size_t size, uint64_t at) {
    if (size < 9) return 0;
    size_t length = bytes[0] << 16 | bytes[1] << 8 | bytes[2];
    if (size < 9 + length) return 0;
    int kind = bytes[3], flags = bytes[4];
    uint32_t stream = number_at(bytes + 5);
    uint8_t *payload = bytes + 9;
    if (kind == DATA && memmem(payload, length, expected, expected_size)) {
        c->told++;
    } else if (kind == HEADERS && flags & 1) {
        if (!c->told) fail("a call was refused", payload, length);
        c->told--;
        ended(c, c->since[stream / 2 % RING], at);
    } else if (kind == SETTINGS && !(flags & 1)) {
        take_settings(c, payload, length);
    } else if (kind == PING && !(flags & 1)) {
        bytes[4] = 1;
        send_all(c, bytes, 9 + length);
    } else if (kind == WINDOW && !stream) {
        c->window += number_at(payload);
    } else if (kind == RESET || kind == GOAWAY) {
        fail(kind == RESET ? "a stream was reset" : "GOAWAY", payload, length);
    }
    return 9 + length;
}

static void receive(Connection *c) {
    ssize_t got = recv(c->file, c->buffer + c->held, BUFFER - c->held, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail("the server hung up", "", 0);
    uint64_t at = now();
    size_t size = c->held + got, taken = 0, more;
    while ((more = (grpc ? take_frame : take_http)(c, c->buffer + taken, size - taken, at)))
        taken += more;
    memmove(c->buffer, c->buffer + taken, c->held = size - taken);
}

static void open_connection(Connection *c, int poll, int port) {
    struct sockaddr_in to = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
    int one = 1;
    c->file = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->file, (void *)&to, sizeof to)) fail("cannot connect", "", 0);
    setsockopt(c->file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {EPOLLIN, {.ptr = c}};
    epoll_ctl(poll, EPOLL_CTL_ADD, c->file, &event);
    c->buffer = malloc(BUFFER);
    c->free = grpc ? streams : 1, c->stream = 1, c->window = 65535;
    if (!grpc) return;
    /* Windows that are never full, as far as this goes. */
    uint8_t out[64] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *to_put = out + 24;
    to_put = put_frame(to_put, 6, SETTINGS, 0, 0);
    memcpy(to_put, "\0\4\x7f\xff\xff\xff", 6);
    to_put = put_frame(to_put + 6, 4, WINDOW, 0, 0);
    memcpy(to_put, "\x40\0\0\0", 4);
    send_all(c, out, to_put + 4 - out);
}

/* What is due by now, to the connections in turn; where calls share a connection, in one write. */
static void ask_when_due(uint64_t start) {
    static int turn, starved;
    uint64_t at = now();
    double spacing = 1e9 / rate;
    while (at < ends) {
        uint64_t due = start + (uint64_t)(number * spacing);
        if (due > at) { starved = 0; return; }
        int tried = 0, wanted = 1 + (int)((at - due) / spacing);
        while (tried < count && !ask(&connections[turn], wanted, starved ? due : at))
            turn = (turn + 1) % count, tried++;
        turn = (turn + 1) % count;
        if (tried == count) { starved = 1; return; }
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_us(double share) {
    return timed ? latencies[(size_t)(share * (timed - 1))] / 1e3 : 0;
}

/* The load's own processor time: what it takes per call is what it could do at most. */
static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    if (argc != 9) fail("PORT http|grpc CONNECTIONS STREAMS SECONDS RATE SPIN EXPECTED", "", 0);
    grpc = !strcmp(argv[2], "grpc");
    count = atoi(argv[3]), streams = atoi(argv[4]);
    seconds = atof(argv[5]), rate = atof(argv[6]);
    spin = atoi(argv[7]), expected = argv[8], expected_size = strlen(expected);
    read_piece(&first), read_piece(&next), read_piece(&message);
    room = 1 << 22;
    latencies = malloc(room * sizeof *latencies);
    alarm((unsigned)seconds + 30);
    int poll = epoll_create1(0);
    connections = calloc(count, sizeof *connections);
    for (int i = 0; i < count; i++) open_connection(&connections[i], poll, atoi(argv[1]));
    uint64_t start = now();
    began = start + WARM_NS, ends = began + (uint64_t)(seconds * 1e9);
    if (!rate)
        for (int i = 0; i < count; i++) ask(&connections[i], streams, now());
    struct epoll_event events[256];
    for (uint64_t at = start; at < ends || in_flight; at = now()) {
        if (rate) ask_when_due(start);
        int ready = epoll_wait(poll, events, 256, spin || rate ? 0 : 100);
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            receive(c);
            if (!rate && at < ends) ask(c, c->free, now());
        }
    }
    qsort(latencies, timed, sizeof *latencies, by_size);
    printf("{\"rate\": %.1f, \"calls\": %lu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"cpu_us\": %.3f}\n",
           answered / seconds, (unsigned long)total, quantile_us(0.5), quantile_us(0.99), cpu_us() / total);
    return 0;
}
