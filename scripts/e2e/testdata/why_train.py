import os,sys,time,torch,torch.distributed as dist
dist.init_process_group("gloo")
r=dist.get_rank(); n=0
t=torch.ones(200000)
while True:
    dist.all_reduce(t)
    t.fill_(1)
    n+=1
    time.sleep(0.02)
    if os.path.exists("/tmp/sleep%d"%r): time.sleep(1000)
