"""Machines of a cluster on this computer: network namespaces on one bridge, with names in /etc/hosts."""

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import yaml

DEPLOY = Path("deploy/citus")
BRIDGE = "machines"
# How long a machine is away after its watchdog has reset it.
BOOT_S = 20


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, **options).stdout


class Machine:
    """A machine: a network namespace. The processes in the namespace are the processes of the machine."""

    def __init__(self, number, name, folder):
        self.name = name
        self.address = f"10.77.0.{number}"
        self.link = f"port{number}"
        self.folder = folder / name
        self.folder.mkdir()
        self.commands = []
        run("ip", "netns", "add", name)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", self.link, "up")
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")
        self.plug()

    def inside(self, *words):
        return run("ip", "netns", "exec", self.name, *words)

    def plug(self):
        run("ip", "link", "set", self.link, "master", BRIDGE)

    def unplug(self):
        """Takes the machine off the network: packets vanish, and neither side is notified."""
        run("ip", "link", "set", self.link, "nomaster")

    def start(self, words, user="root", env=None):
        """Starts a program, which `boot` starts again."""
        self.commands.append((words, user, env or {}))
        self._launch(words, user, env or {})

    def _launch(self, words, user, env):
        command = ["ip", "netns", "exec", self.name]
        if user != "root":
            command += ["runuser", "-u", user, "--"]
        log = open(self.folder / "log", "ab")
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", **env}
        subprocess.Popen(command + words, stdout=log, stderr=log, env=environment, cwd=self.folder,
                         start_new_session=True)

    def processes(self, name=None):
        """The processes of the machine, or those of one program."""
        found = []
        for pid in run("ip", "netns", "pids", self.name).split():
            try:
                comm = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            if name is None or comm == name:
                found.append(int(pid))
        return found

    def signal(self, number, name=None):
        for pid in self.processes(name):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self, name=None):
        # A parent may start children meanwhile.
        for _ in range(3):
            self.signal(signal.SIGKILL, name)

    def freeze(self, name=None):
        self.signal(signal.SIGSTOP, name)

    def power_off(self):
        self.unplug()
        self.kill()

    def boot(self):
        """Makes the machine whole again: plugs it in, resumes its programs, and starts those that have ended."""
        self.signal(signal.SIGCONT)
        self.plug()
        if not self.processes():
            for words, user, env in self.commands:
                self._launch(words, user, env)


class Watchdog(threading.Thread):
    """The watchdog of a machine: resets the machine if Patroni has not written for the time that Patroni has set.

    Patroni's driver for tests writes to a pipe what it would tell the device.
    """

    def __init__(self, machine):
        super().__init__(daemon=True)
        self.machine = machine
        self.path = machine.folder / "watchdog"
        self.resets = []
        os.mkfifo(self.path)
        os.chmod(self.path, 0o666)
        self.pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.start()

    def run(self):
        timeout, last = 60, None
        while True:
            time.sleep(0.1)
            try:
                said = os.read(self.pipe, 65536).decode(errors="replace")
            except BlockingIOError:
                said = ""
            if said:
                for line in said.split("\n"):
                    if "Ctimeout=" in line:
                        timeout = int(line.split("Ctimeout=")[1].split("V")[0].rstrip("1") or timeout)
                last = None if said.endswith("V") else time.time()
            if last is not None and time.time() - last > timeout:
                self.resets.append(time.time())
                self.machine.power_off()
                last = None
                threading.Timer(BOOT_S, self.machine.boot).start()


class Cluster:
    """etcd, the servers of PostgreSQL under Patroni, the Hark nodes and HAProxy."""

    GROUPS = {0: ("coordinator-a", "coordinator-b"), 1: ("worker1a", "worker1b"), 2: ("worker2a", "worker2b")}
    ETCD = ("etcd1", "etcd2", "etcd3")
    HARK = ("hark1", "hark2")

    def __init__(self, folder, binary, server):
        self.folder, self.binary, self.server = folder, binary, server
        self.machines = {}
        self.watchdogs = {}
        run("mount", "--make-rprivate", "/")
        Path("/run/netns").mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "machines", "/run/netns")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", "10.77.0.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        servers = [name for group in self.GROUPS.values() for name in group]
        for number, name in enumerate([*self.ETCD, *servers, *self.HARK, "balancer"], 2):
            self.machines[name] = Machine(number, name, folder)
        lines = ["127.0.0.1 localhost"]
        lines += [f"{machine.address} {name}.example {name}" for name, machine in self.machines.items()]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        run("mount", "--bind", str(folder / "hosts"), "/etc/hosts")

    def start(self):
        self.start_etcd()
        for group, names in self.GROUPS.items():
            for name in names:
                self.start_patroni(name, group)

    def start_etcd(self):
        for name in self.ETCD:
            env = read_env(DEPLOY / "patroni/etcd.env")
            env = {key: value.replace("etcd1.example", f"{name}.example")
                   if key.endswith(("CLIENT_URLS", "PEER_URLS")) else value for key, value in env.items()}
            machine = self.machines[name]
            env |= {"ETCD_NAME": name, "ETCD_DATA_DIR": str(machine.folder / "data")}
            machine.start(["etcd"], env=env)

    def start_patroni(self, name, group):
        machine = self.machines[name]
        shutil.chown(machine.folder, "postgres")
        watchdog = self.watchdogs[name] = Watchdog(machine)
        settings = yaml.safe_load((DEPLOY / "patroni/patroni.yml").read_text())
        postgresql = settings["postgresql"]
        shutil.copy(DEPLOY / "postgresql.conf", machine.folder)
        postgresql |= {
            "bin_dir": self.server,
            "data_dir": str(machine.folder / "data"),
            "custom_conf": str(machine.folder / "postgresql.conf"),
            "pgpass": str(machine.folder / "pgpass-patroni"),
            # All servers share the memory of this computer.
            "parameters": {"shared_buffers": "64MB", "maintenance_work_mem": "32MB", "max_wal_size": "512MB",
                           "unix_socket_directories": str(machine.folder)},
        }
        settings["watchdog"] |= {"driver": "testing", "device": str(watchdog.path)}
        (machine.folder / "patroni.yml").write_text(yaml.safe_dump(settings))
        passwords = machine.folder / "pgpass"
        passwords.write_text("*:*:*:postgres:secret\n*:*:*:hark:secret\n")
        passwords.chmod(0o600)
        shutil.chown(passwords, "postgres")
        env = read_env(DEPLOY / "patroni/node.env")
        env = {key: value.replace("worker1a", name) for key, value in env.items()}
        env |= {"PATRONI_CITUS_GROUP": str(group), "PGPASSFILE": str(passwords), "PATRONI_SUPERUSER_PASSWORD": "secret",
                "PATRONI_REPLICATION_PASSWORD": "secret", "PATRONI_RESTAPI_PASSWORD": "secret"}
        patroni = Path(os.sys.executable).parent / "patroni"
        machine.start([str(patroni), str(machine.folder / "patroni.yml")], user="postgres", env=env)

    def start_hark(self, url):
        for name in self.HARK:
            machine = self.machines[name]
            words = [self.binary, "serve", "--unlimited", "--store", url, "--data", str(machine.folder / "data"),
                     "--listen", f"{machine.address}:7777"]
            env = {"HARK_SERVER_TRUSTED_PROXIES": self.machines["balancer"].address, "HARK_CONFIG": "",
                   "HARK_LIMITS_CONNECTIONS_MAX": "2000", "HARK_LIMITS_CONNECTIONS_PER_ADDRESS_MAX": "1000"}
            machine.start(words, env=env)

    def start_haproxy(self):
        machine = self.machines["balancer"]
        text = (DEPLOY / "patroni/haproxy.cfg").read_text()
        # There is no syslog, and fewer files may be open.
        text = text.replace("log /dev/log local0", "log stdout format raw local0").replace("maxconn 40000", "maxconn 2000")
        (machine.folder / "haproxy.cfg").write_text(text)
        machine.start(["/usr/sbin/haproxy", "-f", str(machine.folder / "haproxy.cfg")])


def read_env(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)
