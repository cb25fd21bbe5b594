#!/bin/bash
# machine.sh MODULES ROOT PYTHON OPTIONS [PYTEST_ARGS …]: the first process of the machine of machine.py.
modules=$1/$(uname -r)/kernel root=$2 python=$3
export CKSTORE_NFS=$4
shift 4
tools=${CKSTORE_NFS_TOOLS:-}
export PATH=$tools/usr/sbin:$tools/sbin:$tools/usr/bin:$tools/bin:/usr/sbin:/usr/bin:/sbin:/bin
[ -z "$tools" ] || export LD_LIBRARY_PATH=$tools/usr/lib/x86_64-linux-gnu:$tools/lib/x86_64-linux-gnu
export PYTHONDONTWRITEBYTECODE=1 HOME=/mnt/home HYPOTHESIS_STORAGE_DIRECTORY=/mnt/home/hypothesis

mount -t proc proc /proc
mount -t sysfs sys /sys
for place in /run /dev/shm /tmp /mnt; do
    [ "$place" = /dev/shm ] && mkdir -p /dev/shm
    case $root$tools in "$place"/*) continue ;; esac
    mount -t tmpfs tmpfs "$place"
done
mkdir -p /mnt/{home,etc,disk}

for module in net/sunrpc/sunrpc fs/nfs_common/grace fs/lockd/lockd fs/nfs_common/nfs_acl lib/oid_registry \
    net/sunrpc/auth_gss/auth_rpcgss fs/nfsd/nfsd net/dns_resolver/dns_resolver fs/netfs/netfs fs/fscache/fscache \
    fs/nfs/nfs fs/nfs/nfsv3 fs/nfs/nfsv4 drivers/net/veth drivers/block/loop fs/fuse/fuse; do
    [ ! -f "$modules/$module.ko" ] || (exec -a insmod kmod "$modules/$module.ko")
done

cp -a /etc/. /mnt/etc && mount --bind /mnt/etc /etc
[ -z "$tools" ] || cp -a "$tools/etc/netconfig" /etc/
: > /etc/exports
grep -q ^_rpc: /etc/passwd || echo '_rpc:x:142:65534::/run/rpcbind:/usr/sbin/nologin' >> /etc/passwd
grep -q ^statd: /etc/passwd || echo 'statd:x:143:65534::/var/lib/nfs:/usr/sbin/nologin' >> /etc/passwd
mkdir -p /mnt/lib && cp -a /var/lib/. /mnt/lib 2> /dev/null
mount --bind /mnt/lib /var/lib
mkdir -p /run/rpcbind /var/lib/nfs/{sm,sm.bak,rpc_pipefs,v4recovery,nfsdcltrack,nfsdcld}
touch /var/lib/nfs/{etab,rmtab,state}

mkfs.ext4 -q -F /dev/ubda && mount /dev/ubda /mnt/disk
ip link set lo up
mount -t nfsd nfsd /proc/fs/nfsd
rpcbind -w && rpc.statd --no-notify && rpc.mountd 2> /dev/null
echo 10 > /proc/fs/nfsd/nfsv4gracetime
echo 10 > /proc/fs/nfsd/nfsv4leasetime
exportfs -o 'rw,sync,no_root_squash,no_subtree_check,insecure,fsid=0' '*:/mnt/disk'
rpc.nfsd 4

# The hosts: an address of the server, and a client there.
for host in 1 2; do
    ip link add "server$host" type veth peer name "client$host"
    ip addr add "10.9.$host.1/24" dev "server$host"
    ip link set "server$host" up
    unshare -n -u bash -c "hostname host$host; ip link set lo up; echo \$\$ > /run/host$host; exec sleep infinity" &
    until [ -s "/run/host$host" ]; do sleep 0.1; done
    ip link set "client$host" netns "$(cat "/run/host$host")"
    nsenter -n -u -t "$(cat "/run/host$host")" bash -c \
        "ip addr add 10.9.$host.2/24 dev client$host; ip link set client$host up"
done

cd "$root" || exit 1
"$python" -m pytest -p no:cacheprovider --color=no --basetemp=/mnt/disk/tests "$@"
echo "the tests ended with $?"
echo o > /proc/sysrq-trigger
sleep 60
