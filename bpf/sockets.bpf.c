// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The descriptors of watched processes: every TCP connection whose counters moved and, in detail
 * mode, everything that can make one process wait for another. It reads sockets through the files
 * that hold them, so network namespaces do not matter.
 *
 * As in threads.bpf.c, a record is written before the map is changed.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "emit.bpf.h"
#include "tcp.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/uapi/linux/stat.h, include/uapi/linux/magic.h, include/linux/fs.h, include/net/sock.h */
#define S_IFMT         0170000
#define S_IFIFO        0010000
#define S_IFSOCK       0140000
#define PIPEFS_MAGIC   0x50495045
#define FMODE_READ     1
#define FMODE_WRITE    2
#define SOCK_DONE_FLAG (1UL << 1)

/* A pipe has 16 buffers unless it was enlarged; what lies in later ones is not added up. */
#define PIPE_BUFFERS_READ 64
#define MESSAGES_READ     32

/* 7d8ed1a7a9d5 ("af_unix: Cache state->msg in unix_stream_read_generic()", 6.17) counts for us. */
struct unix_sock___counted {
	int inq_len;
} __attribute__((preserve_access_index));

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

/* As tcp_inq(): a FIN that came takes one byte of sequence space, and is not data. */
static __always_inline __u32 unread_bytes(struct sock *sk, struct tcp_sock *tcp)
{
	__u32 unread = clamp(BPF_CORE_READ(tcp, rcv_nxt) - BPF_CORE_READ(tcp, copied_seq));

	if (unread && BPF_CORE_READ(sk, __sk_common.skc_flags) & SOCK_DONE_FLAG)
		unread--;
	return unread;
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
	event->retransmit_count = BPF_CORE_READ(icsk, icsk_retransmits);
	event->backoff = BPF_CORE_READ(icsk, icsk_backoff);
	event->probe_count = BPF_CORE_READ(icsk, icsk_probes_out);
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
		/* The counters of a socket without a connection mean something else, or nothing. */
		__builtin_memset(&event->acked_bytes, 0, 5 * sizeof(__u64));
		__builtin_memset(&event->unread_bytes, 0, 7 * sizeof(__u32));
		return;
	}
	read_counters(event, sk);
	event->last_send_ns = time_of(pass, BPF_CORE_READ(tcp, lsndtime));
	event->last_receive_ns = time_of(pass, BPF_CORE_READ(icsk, icsk_ack.lrcvtime));
}

static __always_inline __u32 trouble_of(struct socket_event *event)
{
	return event->retransmit_count << 16 | event->backoff << 8 | event->probe_count;
}

static __always_inline bool has_moved(struct socket_sample *sample, struct socket_event *event)
{
	return sample->acked_bytes != event->acked_bytes ||
	       sample->received_bytes != event->received_bytes ||
	       sample->unread_bytes != event->unread_bytes ||
	       sample->unsent_bytes != event->unsent_bytes ||
	       sample->unacked_bytes != event->unacked_bytes;
}

static __always_inline void remember(struct socket_sample *sample, struct socket_event *event)
{
	sample->inode = event->inode;
	sample->acked_bytes = event->acked_bytes;
	sample->received_bytes = event->received_bytes;
	sample->changed_ns = event->changed_ns;
	sample->state = event->state;
	sample->unread_bytes = event->unread_bytes;
	sample->unsent_bytes = event->unsent_bytes;
	sample->unacked_bytes = event->unacked_bytes;
	sample->trouble = trouble_of(event);
}

static __always_inline int first_sample(struct seq_file *seq, struct pass_value *pass,
					struct socket_event *event, struct sock *sk)
{
	struct socket_sample sample = {};
	__u64 key = (__u64)sk;

	event->changed_ns = event->last_send_ns > event->last_receive_ns ? event->last_send_ns
									 : event->last_receive_ns;
	if (bpf_seq_write(seq, event, sizeof(*event)))
		return 0;
	remember(&sample, event);
	sample.pid = event->header.pid;
	sample.pass_id = pass->id;
	if (bpf_map_update_elem(&sockets, &key, &sample, BPF_ANY))
		COUNT_LOST(socket_count);
	return 0;
}

/* A socket may be held more than once: what moved in this pass is sent for each holder. */
static __always_inline int send_socket(struct bpf_iter__task_file *ctx, struct pass_value *pass,
				       struct process_value *process, struct socket_event *event,
				       struct sock *sk)
{
	__u64 key = (__u64)sk;
	struct socket_sample *sample = bpf_map_lookup_elem(&sockets, &key);
	bool moved, news;

	if (!sample || sample->inode != event->inode)
		return first_sample(ctx->meta->seq, pass, event, sk);
	moved = has_moved(sample, event);
	event->changed_ns = moved ? pass->boottime_ns : sample->changed_ns;
	news = event->changed_ns == pass->boottime_ns || sample->state != event->state ||
	       sample->trouble != trouble_of(event);
	if (news || process->detail || process->socket_pass_id == ctx->meta->session_id) {
		if (bpf_seq_write(ctx->meta->seq, event, sizeof(*event)))
			return 0;
	}
	remember(sample, event);
	sample->pass_id = pass->id;
	return 0;
}

static __always_inline __u32 pipe_unread_bytes(struct pipe_inode_info *pipe)
{
	__u32 tail = BPF_CORE_READ(pipe, tail), mask = BPF_CORE_READ(pipe, ring_size) - 1;
	__u32 count = BPF_CORE_READ(pipe, head) - tail, bytes = 0;
	struct pipe_buffer *buffers = BPF_CORE_READ(pipe, bufs);
	__u64 stride = bpf_core_type_size(struct pipe_buffer);

	for (__u32 i = 0; i < PIPE_BUFFERS_READ; i++) {
		struct pipe_buffer *buffer = (void *)buffers + ((tail + i) & mask) * stride;

		if (i >= count)
			break;
		bytes += BPF_CORE_READ(buffer, len);
	}
	return bytes;
}

/* Without the kernel's own count: the first messages, one that was partly read counted whole. */
static __always_inline __u32 unix_unread_bytes(struct sock *sk)
{
	struct unix_sock___counted *counted = (void *)sk;
	struct sk_buff *end = (void *)sk + bpf_core_field_offset(sk->sk_receive_queue);
	struct sk_buff *skb = BPF_CORE_READ(sk, sk_receive_queue.next);
	__u32 bytes = 0;

	if (bpf_core_field_exists(counted->inq_len))
		return BPF_CORE_READ(counted, inq_len);
	for (int i = 0; i < MESSAGES_READ && skb && skb != end; i++) {
		bytes += BPF_CORE_READ(skb, len);
		skb = BPF_CORE_READ(skb, next);
	}
	return bytes;
}

static __always_inline void read_pipe(struct descriptor_event *event, struct inode *inode)
{
	event->kind = inode->i_sb->s_magic == PIPEFS_MAGIC ? DESCRIPTOR_PIPE : DESCRIPTOR_FIFO;
	event->unread_bytes = pipe_unread_bytes(BPF_CORE_READ(inode, i_pipe));
	event->peer_inode = 0;
}

static __always_inline void read_unix(struct descriptor_event *event, struct sock *sk)
{
	struct sock *peer = BPF_CORE_READ((struct unix_sock *)sk, peer);

	event->kind = DESCRIPTOR_UNIX;
	event->unread_bytes = unix_unread_bytes(sk);
	event->peer_inode = peer ? socket_inode(peer) : 0;
}

static __always_inline int send_descriptor(struct bpf_iter__task_file *ctx, struct file *file,
					   struct event_header *header, struct sock *sk)
{
	struct descriptor_event event;

	fill_header(&event.header, EVENT_DESCRIPTOR, sizeof(event), header->pid,
		    header->boottime_ns);
	event.fd = ctx->fd;
	event.inode = file->f_inode->i_ino;
	event.readable = (file->f_mode & FMODE_READ) != 0;
	event.writable = (file->f_mode & FMODE_WRITE) != 0;
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
	event.fd = ctx->fd;
	event.inode = file->f_inode->i_ino;
	read_socket(&event, sk, pass);
	return send_socket(ctx, pass, process, &event, sk);
}
