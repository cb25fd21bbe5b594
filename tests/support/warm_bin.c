/* Stands in for `python` and `ckstore`: has a warm process fork one that goes on as this one, and ends as that one ends.
   See warm_bin.py for what is sent. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;
static int server;

static void pass_on(int number) {
    unsigned char byte = (unsigned char)number;
    if (write(server, &byte, 1) != 1)
        _exit(125);
}

static void fail(const char *what) {
    perror(what);
    exit(125);
}

static char *add(char *to, const char *text) {
    size_t length = strlen(text) + 1;
    memcpy(to, text, length);
    return to + length;
}

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, SOCKET, sizeof address.sun_path - 1);
    server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address))
        fail("the warm process");

    size_t size = 64;
    for (int i = 0; i < argc; i++)
        size += strlen(argv[i]) + 1;
    for (char **one = environ; *one; one++)
        size += strlen(*one) + 1;
    char *text = malloc(size), numbers[32], *end = text;
    if (!text)
        fail("malloc");
    mode_t mask = umask(0);
    snprintf(numbers, sizeof numbers, "%d", (int)mask);
    end = add(end, numbers);
    snprintf(numbers, sizeof numbers, "%d", argc);
    end = add(end, numbers);
    for (int i = 0; i < argc; i++)
        end = add(end, argv[i]);
    for (char **one = environ; *one; one++)
        end = add(end, *one);

    int given[4] = {0, 1, 2, open(".", O_PATH | O_CLOEXEC)};
    uint32_t length = (uint32_t)(end - text);
    union { char bytes[CMSG_SPACE(sizeof given)]; struct cmsghdr aligned; } control = {{0}};
    struct iovec first = {&length, sizeof length};
    struct msghdr message = {.msg_iov = &first, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof given);
    memcpy(CMSG_DATA(header), given, sizeof given);
    if (sendmsg(server, &message, 0) != sizeof length)
        fail("sendmsg");
    for (char *at = text; at < end;) {
        ssize_t sent = write(server, at, (size_t)(end - at));
        if (sent <= 0)
            fail("write");
        at += sent;
    }

    int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaction(passed_on[i], &action, NULL);
    int32_t status;
    if (read(server, &status, sizeof status) != sizeof status)
        return 125;
    if (status >= 0)
        return status;
    signal(-status, SIG_DFL);
    kill(getpid(), -status);
    return 128 - status;
}
