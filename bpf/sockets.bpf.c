// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The descriptors of watched processes: every TCP connection whose counters changed and, in
 * detail mode, everything through which one process can wait for another. It reaches sockets
 * through the files that hold them, so network namespaces do not matter.
 *
 * As in threads.bpf.c, a record is written before the map is changed.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "account.bpf.h"
#include "emit.bpf.h"
#include "pass.bpf.h"
#include "tcp.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/uapi/linux/stat.h, include/uapi/linux/magic.h, include/net/sock.h */
#define S_IFMT         0170000
#define S_IFIFO        0010000
#define S_IFSOCK       0140000
#define PIPEFS_MAGIC   0x50495045
#define SOCK_DONE_FLAG (1UL << 1)

static __always_inline __u32 clamp(__u32 difference)
{
	return (__s32)difference < 0 ? 0 : difference;
}

/* The pass's clock some jiffies ago; a socket used since the pass began reads as "now". */
static __always_inline __u64 time_of(struct pass_value *pass, __u32 jiffies)
{
	__u64 age_ns = clamp((__u32)pass->jiffies - jiffies) * pass->tick_ns;

	return age_ns < pass->boottime_ns ? pass->boottime_ns - age_ns : 0;
}

/* Like tcp_inq(): a received FIN takes one byte of sequence space, and is not data. */
static __always_inline __u32 unread_bytes(struct sock *sk, struct tcp_sock *tcp)
{
	__u32 unread = clamp(BPF_CORE_READ(tcp, rcv_nxt) - BPF_CORE_READ(tcp, copied_seq));

	if (unread && BPF_CORE_READ(sk, __sk_common.skc_flags) & SOCK_DONE_FLAG)
		unread--;
	return unread;
}

/* Retransmissions, backoff and zero-window probes in one word. */
static __always_inline __u32 losses_of(struct sock *sk)
{
	struct inet_connection_sock *icsk = (void *)sk;

	return BPF_CORE_READ(icsk, icsk_retransmits) << 16 |
	       BPF_CORE_READ(icsk, icsk_backoff) << 8 | BPF_CORE_READ(icsk, icsk_probes_out);
}

static __always_inline void read_counters(struct socket_event *event, struct sock *sk)
{
	struct inet_connection_sock *icsk = (void *)sk;
	struct tcp_sock *tcp = (void *)sk;
	__u32 next = BPF_CORE_READ(tcp, snd_nxt);

	event->unread_bytes = unread_bytes(sk, tcp);
	event->unsent_bytes = clamp(BPF_CORE_READ(tcp, write_seq) - next);
	event->unacked_bytes = clamp(next - BPF_CORE_READ(tcp, snd_una));
	event->acked_bytes = BPF_CORE_READ(tcp, bytes_acked);
	event->received_bytes = BPF_CORE_READ(tcp, bytes_received);
	event->send_window_bytes = BPF_CORE_READ(tcp, snd_wnd);
	event->backoff = BPF_CORE_READ(icsk, icsk_backoff);
}

static __always_inline void read_socket(struct socket_event *event, struct sock *sk,
					struct pass_value *pass)
{
	struct inet_connection_sock *icsk = (void *)sk;
	struct tcp_sock *tcp = (void *)sk;

	read_endpoints(&event->ends, sk);
	event->state = BPF_CORE_READ(sk, __sk_common.skc_state);
	event->pad = 0;
	if (event->state == TCP_LISTEN || event->state == TCP_CLOSE) {
		/* The counters of a socket without a connection have another meaning, or none. */
		__builtin_memset(&event->acked_bytes, 0, 4 * sizeof(__u64));
		__builtin_memset(&event->unread_bytes, 0, 5 * sizeof(__u32));
		return;
	}
	read_counters(event, sk);
	event->last_send_ns = time_of(pass, BPF_CORE_READ(tcp, lsndtime));
	event->last_receive_ns = time_of(pass, BPF_CORE_READ(icsk, icsk_ack.lrcvtime));
}

static __always_inline bool has_moved(struct socket_sample *sample, struct socket_event *event)
{
	return sample->acked_bytes != event->acked_bytes ||
	       sample->received_bytes != event->received_bytes ||
	       sample->unread_bytes != event->unread_bytes ||
	       sample->unsent_bytes != event->unsent_bytes ||
	       sample->unacked_bytes != event->unacked_bytes;
}

static __always_inline void remember(struct socket_sample *sample, struct socket_event *event,
				     struct sock *sk)
{
	sample->inode = event->inode;
	sample->acked_bytes = event->acked_bytes;
	sample->received_bytes = event->received_bytes;
	sample->state = event->state;
	sample->unread_bytes = event->unread_bytes;
	sample->unsent_bytes = event->unsent_bytes;
	sample->unacked_bytes = event->unacked_bytes;
	sample->losses = losses_of(sk);
}

static __always_inline int first_sample(struct seq_file *seq, struct task_struct *task,
					struct pass_value *pass, struct process_value *process,
					struct socket_event *event, struct sock *sk)
{
	struct socket_sample sample = {};
	__u64 key = (__u64)sk;

	if (!take_socket(process, task, &sample))
		return 0;
	if (bpf_seq_write(seq, event, sizeof(*event))) {
		drop_socket(&sample);
		return 0;
	}
	remember(&sample, event, sk);
	sample.changed_ns = pass->boottime_ns;
	sample.pid = event->header.pid;
	sample.pass_id = pass->id;
	if (bpf_map_update_elem(&sockets, &key, &sample, BPF_ANY)) {
		drop_socket(&sample);
		COUNT_LOST(socket_count);
	}
	return 0;
}

/* A socket may be open in several processes: a change in this pass is sent for each of them. */
static __always_inline int send_socket(struct bpf_iter__task_file *ctx, struct task_struct *task,
				       struct pass_value *pass, struct process_value *process,
				       struct socket_event *event, struct sock *sk)
{
	__u64 key = (__u64)sk;
	struct socket_sample *sample = bpf_map_lookup_elem(&sockets, &key);
	bool news;

	if (!sample || sample->inode != event->inode) {
		if (sample)
			drop_socket(sample); /* another socket was at this address */
		return first_sample(ctx->meta->seq, task, pass, process, event, sk);
	}
	news = has_moved(sample, event) || sample->changed_ns == pass->boottime_ns ||
	       sample->state != event->state || sample->losses != losses_of(sk);
	if (news || process->detail || process->socket_pass_id == ctx->meta->session_id) {
		if (bpf_seq_write(ctx->meta->seq, event, sizeof(*event)))
			return 0;
	}
	if (has_moved(sample, event))
		sample->changed_ns = pass->boottime_ns;
	remember(sample, event, sk);
	sample->pass_id = pass->id;
	return 0;
}

static __always_inline void read_pipe(struct descriptor_event *event, struct inode *inode)
{
	event->kind = inode->i_sb->s_magic == PIPEFS_MAGIC ? DESCRIPTOR_PIPE : DESCRIPTOR_FIFO;
	event->peer_inode = 0;
	event->drain_mark = BPF_CORE_READ(inode, i_pipe, tail); /* buffers that were read */
}

/* Bytes of the first buffer in the queue of `sk` that were read; the rest of it was not. */
static __always_inline __u32 consumed_bytes(struct sock *sk)
{
	struct sk_buff *first = BPF_CORE_READ(sk, sk_receive_queue.next);
	struct unix_skb_parms *parms = (void *)__builtin_preserve_access_index(&first->cb);

	if (!bpf_core_field_exists(parms->consumed) || !BPF_CORE_READ(sk, sk_receive_queue.qlen))
		return 0;
	return BPF_CORE_READ(parms, consumed);
}

/*
 * What was sent counts with the memory that it needs until it was read (net/unix/af_unix.c:
 * unix_stream_sendmsg(), unix_stream_read_generic()). Each read makes it less.
 */
static __always_inline __u64 unread_memory(struct sock *sk, struct sock *peer)
{
	__u32 memory = BPF_CORE_READ(sk, sk_wmem_alloc.refs.counter);

	return clamp(memory - (peer ? consumed_bytes(peer) : 0));
}

static __always_inline void read_unix(struct descriptor_event *event, struct sock *sk)
{
	struct sock *peer = BPF_CORE_READ((struct unix_sock *)sk, peer);

	event->kind = DESCRIPTOR_UNIX;
	event->peer_inode = peer ? socket_inode(peer) : 0;
	event->drain_mark = unread_memory(sk, peer);
}

static __always_inline int send_descriptor(struct bpf_iter__task_file *ctx, struct file *file,
					   struct event_header *header, struct sock *sk)
{
	struct descriptor_event event;

	fill_header(&event.header, EVENT_DESCRIPTOR, sizeof(event), header->pid,
		    header->boottime_ns);
	event.fd = ctx->fd;
	event.inode = file->f_inode->i_ino;
	if (sk)
		read_unix(&event, sk);
	else
		read_pipe(&event, file->f_inode);
	bpf_seq_write(ctx->meta->seq, &event, sizeof(event));
	return 0;
}

static __always_inline struct sock *socket_of(struct file *file)
{
	struct socket *socket = BPF_CORE_READ(file, private_data);

	return BPF_CORE_READ(socket, sk);
}

/* A socket without room is charged to its owner: it is not read until there is room. */
static __always_inline bool is_passed_over(struct process_value *process, struct task_struct *task,
					   struct sock *sk)
{
	__u64 key = (__u64)sk;

	return process->socket_refused && !bpf_map_lookup_elem(&sockets, &key) &&
	       !has_room_for_socket(process, task);
}

SEC("iter/task_file")
int sample_sockets(struct bpf_iter__task_file *ctx)
{
	struct pass_value *pass = current_pass();
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct process_value *process;
	struct socket_event event;
	struct sock *sk;
	__u32 type;

	if (!pass || !task || !file)
		return 0;
	process = watched(task->tgid);
	if (!process)
		return 0;
	/* user space decides how many bytes of a process are enough for one pass */
	if (!has_time(pass, 1)) {
		pass->work = 0;
		return RETURN_TO_USER_SPACE;
	}
	if (!process->socket_pass_id)
		process->socket_pass_id = ctx->meta->session_id;
	type = file->f_inode->i_mode & S_IFMT;
	fill_header(&event.header, EVENT_SOCKET, sizeof(event), task->tgid, pass->boottime_ns);
	if (type == S_IFIFO && process->detail)
		return send_descriptor(ctx, file, &event.header, NULL);
	if (type != S_IFSOCK)
		return 0;
	sk = socket_of(file);
	if (process->detail && BPF_CORE_READ(sk, __sk_common.skc_family) == AF_UNIX)
		return send_descriptor(ctx, file, &event.header, sk);
	if (!is_tcp(sk))
		return 0;
	pass->work += LONGER_WORK;
	if (is_passed_over(process, task, sk))
		return 0;
	event.fd = ctx->fd;
	event.inode = file->f_inode->i_ino;
	read_socket(&event, sk, pass);
	return send_socket(ctx, task, pass, process, &event, sk);
}
