// The thread context of OTEP 4947: each thread publishes its active span.

#include <stdint.h>
#include <string.h>

struct record {
	uint8_t trace[16], span[8], valid, reserved;
	uint16_t size;
};

__thread struct record *otel_thread_ctx_v1;
static __thread struct record own;

void publish(uint8_t id) {
	otel_thread_ctx_v1 = 0;
	memset(own.trace, id, sizeof own.trace);
	memset(own.span, id, sizeof own.span);
	own.valid = 1;
	otel_thread_ctx_v1 = &own;
}

void withdraw(void) { otel_thread_ctx_v1 = 0; }
