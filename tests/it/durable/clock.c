/* A wall clock that is wrong by as many seconds as the file named in CLOCK_OFFSET says; all other clocks are right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long offset(void)
{
	const char *name = getenv("CLOCK_OFFSET");
	char text[32] = { 0 };
	int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;

	if (file < 0)
		return 0;
	if (read(file, text, sizeof text - 1) < 0)
		text[0] = 0;
	close(file);
	return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *at)
{
	int done = (int)syscall(SYS_clock_gettime, id, at);

	if (done == 0 && id == CLOCK_REALTIME)
		at->tv_sec += offset();
	return done;
}
