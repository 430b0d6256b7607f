// Agents of many nodes in one process, for `python -m bench.clusterbench orders` and `load`: each has a watch of its
// own, acknowledges in a Lease (or a report) of its own, and writes what is asked of it at the pace that is asked.
// Compiled, so that two cores that also carry the API server measure what the agents ask of it rather than themselves.
// What an agent does to its processes takes no time here.
//
// Reads one JSON object (settings) from stdin. Writes "up" once every agent has reported and listens, then
// "VERB UNIX_SECONDS" for each order that an agent hears; ends with an error line and exit code 1.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

type settings struct {
	Server string  `json:"server"`
	CA     string  `json:"ca"`
	Token  string  `json:"token"`
	Watch  string  `json:"watch"`
	Agents []agent `json:"agents"`
}

type agent struct {
	Report    string         `json:"report"`
	Body      map[string]any `json:"body"`
	Lease     string         `json:"lease"` // empty: it acknowledges in its report
	LeaseBody map[string]any `json:"leaseBody"`
	PodStatus string         `json:"podStatus"`
	Restarted map[string]any `json:"restarted"`
	Beats     []beat         `json:"beats"`
	acks      []ack
}

// beat is a write that is repeated.
type beat struct {
	Path   string         `json:"path"`
	Type   string         `json:"type"`
	Body   map[string]any `json:"body"`
	EveryS float64        `json:"everyS"`
}

type ack struct {
	Order     string `json:"order"`
	Verb      string `json:"verb"`
	Result    string `json:"result"`
	Processes int    `json:"processes"`
}

type order struct {
	ID   string `json:"id"`
	Verb string `json:"verb"`
}

// Connections by which reports are sent; agents of a real cluster have one each.
const senders = 128

// TLS handshakes at a time.
const greetings = 32

const mergePatch = "application/merge-patch+json"
const applyPatch = "application/apply-patch+yaml"
const jsonPatch = "application/json-patch+json"
const apply = "?fieldManager=kcover-agent&force=true"
const byAgent = "?fieldManager=kcover-agent&fieldValidation=Ignore"

var (
	client  *http.Client
	tlsConf *tls.Config
	server  *url.URL
	token   string
	output  = bufio.NewWriter(os.Stdout)
	outLock sync.Mutex
)

func main() {
	var asked settings
	check(json.NewDecoder(os.Stdin).Decode(&asked))
	connect(asked)
	gate := make(chan struct{}, greetings)
	var up sync.WaitGroup
	for index := range asked.Agents {
		up.Add(1)
		go func() {
			each := &asked.Agents[index]
			gate <- struct{}{}
			report(each.Report, each.Body)
			if each.Lease != "" {
				patch(each.Lease+apply, applyPatch, each.LeaseBody)
			}
			if asked.Watch == "" {
				<-gate
				up.Done()
				return
			}
			lines := listen(asked.Watch)
			<-gate
			up.Done()
			each.obey(lines)
		}()
	}
	up.Wait()
	say("up")
	for index := range asked.Agents {
		for _, each := range asked.Agents[index].Beats {
			go each.repeat()
		}
	}
	select {}
}

func connect(asked settings) {
	var err error
	server, err = url.Parse(asked.Server)
	check(err)
	token = asked.Token
	authority, err := os.ReadFile(asked.CA)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	tlsConf = &tls.Config{
		RootCAs:            roots,
		ServerName:         server.Hostname(),
		ClientSessionCache: tls.NewLRUClientSessionCache(8),
	}
	dial := func(context.Context, string, string) (net.Conn, error) { return open() }
	client = &http.Client{Transport: &http.Transport{
		DialTLSContext: dial, MaxConnsPerHost: senders, MaxIdleConnsPerHost: senders,
	}}
}

func open() (net.Conn, error) { return tls.Dial("tcp", server.Host, tlsConf) }

// listen begins a watch, and returns its lines.
func listen(path string) *bufio.Reader {
	connection, err := open()
	check(err)
	request, err := http.NewRequest("GET", server.String()+path, nil)
	check(err)
	request.Header.Set("Authorization", token)
	check(request.Write(connection))
	response, err := http.ReadResponse(bufio.NewReader(connection), request)
	check(err)
	expect(response)
	return bufio.NewReader(response.Body)
}

func (a *agent) obey(lines *bufio.Reader) {
	for {
		line, err := lines.ReadBytes('\n')
		check(err)
		heard := orderIn(line)
		if heard == nil || a.knows(heard.ID) {
			continue
		}
		say(fmt.Sprintf("%s %.6f", heard.Verb, float64(time.Now().UnixMicro())/1e6))
		a.acks = append(a.acks, ack{heard.ID, heard.Verb, "Done", 1})
		a.acknowledge()
		if heard.Verb == "Kill" {
			patch(a.PodStatus, mergePatch, a.Restarted)
		}
	}
}

// acknowledge does what agent/reports/report_sender.py does.
func (a *agent) acknowledge() {
	if a.Lease == "" {
		// nothing of the report but the acks
		answer := map[string]any{"sequence": len(a.acks) + 1, "acks": a.acks}
		patch(a.Report, mergePatch, map[string]any{"spec": answer})
		return
	}
	said, err := json.Marshal(map[string]any{"current": []int{1}, "acks": a.acks})
	check(err)
	metadata := a.LeaseBody["metadata"].(map[string]any)
	metadata["annotations"] = map[string]any{"kcover.io/agent": string(said)}
	stamp(a.LeaseBody["spec"].(map[string]any))
	patch(a.Lease, mergePatch, a.LeaseBody)
}

func (b beat) repeat() {
	period := time.Duration(b.EveryS * float64(time.Second))
	time.Sleep(time.Duration(rand.Float64() * float64(period)))
	for tick := time.Tick(period); ; <-tick {
		stamp(b.Body["spec"].(map[string]any))
		// a server that cannot keep up is what this measures
		if b.Type == jsonPatch {
			replaceSpec(b.Path, b.Body)
		} else {
			send("PATCH", b.Path, b.Type, b.Body)
		}
	}
}

// stamp makes a body differ from the one before, as time does.
func stamp(spec map[string]any) {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	if _, isLease := spec["renewTime"]; isLease {
		spec["renewTime"] = now
	} else {
		spec["time"] = now
	}
}

func (a *agent) knows(id string) bool {
	for _, each := range a.acks {
		if each.Order == id {
			return true
		}
	}
	return false
}

// report does what kube/client.py does: it replaces the spec, and creates a report that does not exist.
func report(path string, body map[string]any) {
	status, said := replaceSpec(path, body)
	if status == http.StatusNotFound {
		status, said = send("POST", path[:strings.LastIndex(path, "/")]+byAgent, "application/json", body)
	}
	if status >= 300 {
		check(fmt.Errorf("%d: %s", status, said))
	}
}

func replaceSpec(path string, body map[string]any) (int, []byte) {
	changes := []map[string]any{{"op": "add", "path": "/spec", "value": body["spec"]}}
	return send("PATCH", path+byAgent, jsonPatch, changes)
}

func patch(path, kind string, body map[string]any) {
	if status, said := send("PATCH", path, kind, body); status >= 300 {
		check(fmt.Errorf("%d: %s", status, said))
	}
}

// send returns the status, and what the server says where it refused.
func send(method, path, kind string, body any) (int, []byte) {
	raw, err := json.Marshal(body)
	check(err)
	request, err := http.NewRequest(method, server.String()+path, bytes.NewReader(raw))
	check(err)
	request.Header.Set("Authorization", token)
	request.Header.Set("Content-Type", kind)
	response, err := client.Do(request)
	check(err)
	said, err := io.ReadAll(response.Body)
	check(err)
	check(response.Body.Close())
	return response.StatusCode, said
}

func expect(response *http.Response) {
	if response.StatusCode >= 300 {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 300))
		check(fmt.Errorf("%s: %s", response.Status, said))
	}
}

var (
	lastLock  sync.Mutex
	lastLine  []byte
	lastOrder *order
)

// orderIn finds the order in an event. All watches report the same, and it is read once; the agents of a real
// cluster read it each on its own machine.
func orderIn(line []byte) *order {
	lastLock.Lock()
	defer lastLock.Unlock()
	if bytes.Equal(line, lastLine) {
		return lastOrder
	}
	var event struct {
		Object struct {
			Status struct {
				Order *order `json:"order"`
			} `json:"status"`
		} `json:"object"`
	}
	check(json.Unmarshal(line, &event))
	lastLine, lastOrder = bytes.Clone(line), event.Object.Status.Order
	return lastOrder
}

func say(text string) {
	outLock.Lock()
	defer outLock.Unlock()
	fmt.Fprintln(output, text)
	check(output.Flush())
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
